use sandbox_core::{VolumeMount, VolumeSource};

/// `SRC:DST[:ro|:rw]`: a path of this host (relative ones are below the working folder) or the name of a volume, and where
/// it is seen.
///
/// # Errors
/// Says which form is taken.
pub(crate) fn volume(text: &str) -> Result<VolumeMount, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, read_only) = match parts.as_slice() {
        [source, target] | [source, target, "rw"] => (*source, *target, false),
        [source, target, "ro"] => (*source, *target, true),
        _ => return Err("expected SRC:DST or SRC:DST:ro".to_owned()),
    };
    if source.is_empty() || !target.starts_with('/') {
        return Err("expected SRC:DST with an absolute DST".to_owned());
    }
    let source = if source.starts_with(['/', '.', '~']) {
        VolumeSource::Bind(absolute(source)?)
    } else {
        VolumeSource::Named(source.to_owned())
    };
    Ok(VolumeMount { source, target: target.to_owned(), read_only })
}

fn absolute(path: &str) -> Result<String, String> {
    if path.starts_with('~') {
        return Err("~ was not expanded by your shell; write the whole path".to_owned());
    }
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    path.into_os_string().into_string().map_err(|_| "the path of SRC is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use sandbox_core::VolumeSource;

    use super::volume;

    #[test]
    fn paths_and_names_are_told_apart() {
        let mount = volume("/a/b:/c:ro").unwrap();
        assert_eq!(
            (mount.source, mount.target.as_str(), mount.read_only),
            (VolumeSource::Bind("/a/b".into()), "/c", true)
        );
        assert_eq!(volume("cache:/c").unwrap().source, VolumeSource::Named("cache".into()));
        let VolumeSource::Bind(path) = volume("./x:/c").unwrap().source else { panic!("a path") };
        assert!(path.starts_with('/') && path.ends_with("/x"));
        for bad in ["", "a", "a:b", ":/c", "a:/c:xx", "a:/b:/c:ro", "~/x:/c"] {
            assert!(volume(bad).is_err(), "{bad}");
        }
    }
}
