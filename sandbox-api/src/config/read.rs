use std::path::Path;

use sandbox_core::{Result, SandboxError};
use serde_json::Value;

/// A configuration file larger than this is something else.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Reads a file as TOML, YAML (`.yaml`, `.yml`) or JSON (`.json`), by its name. Nothing in it is resolved yet.
///
/// # Errors
/// `NotFound`, `PermissionDenied`; `InvalidInput` with file and line, never with a line's text: it may hold a secret.
pub fn read_config_file(path: &Path) -> Result<Value> {
    let shown = path.display();
    let unreadable = |error| SandboxError::io(format!("cannot read the config file {shown}"), error);
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_FILE_BYTES {
        let message = format!("the config file {shown} has {size} bytes; at most {MAX_FILE_BYTES} are read");
        return Err(SandboxError::invalid_input("config", message));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let wrong = |line: Option<usize>, what: &str| {
        let place = line.map(|line| format!(", line {line}")).unwrap_or_default();
        SandboxError::invalid_input("config", format!("{shown}{place}: {what}"))
    };
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") => serde_saphyr::from_str(&text).map_err(|error| {
            let line = error.location().and_then(|location| usize::try_from(location.line()).ok());
            wrong(line, "this is no valid YAML")
        }),
        Some("json") => serde_json::from_str(&text).map_err(|error| wrong(Some(error.line()), "this is no valid JSON")),
        _ => toml::from_str(&text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            wrong(line, &error.message().replace('\n', " "))
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::read_config_file;

    #[test]
    fn every_format_gives_the_same_and_errors_name_the_line_and_nothing_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let expected = json!({"box": {"docker": {"image": "x", "n": 3, "list": [true, 0.5]}}});
        for (name, text) in [
            ("a.toml", "[box.docker]\nimage = \"x\"\nn = 3\nlist = [true, 0.5]\n"),
            ("a.yaml", "# note\nbox:\n  docker: &d\n    image: x\n    n: 3\n    list: [true, 0.5]\n"),
            ("a.yml", "box: {docker: {image: 'x', n: 3, list: [true, 0.5]}}"),
            ("a.json", r#"{"box":{"docker":{"image":"x","n":3,"list":[true,0.5]}}}"#),
        ] {
            assert_eq!(read_config_file(&write(name, text)).unwrap(), expected, "{name}");
        }
        for (name, text) in [
            ("b.toml", "a = 1\nb = [canary\n"),
            ("b.yaml", "a: 1\nb: [canary\n"),
            ("b.json", "{\"a\": 1,\n\"b\": canary}"),
        ] {
            let error = read_config_file(&write(name, text)).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(&format!("{name}, line ")) && !shown.contains("canary"), "{shown}");
        }
        let error = read_config_file(&folder.path().join("none.yaml")).unwrap_err();
        assert!(error.to_string().contains("none.yaml"), "{error}");
    }
}
