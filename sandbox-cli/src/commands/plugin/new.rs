use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::Args;
use sandbox_api::BUILTIN_PROVIDERS;
use sandbox_core::ProviderManifest;
use serde_json::json;

use crate::{
    app::App,
    failure::Failure,
    output::{self, SCHEMA},
    usage::quote,
};

/// The files of a new crate, and what they are called there.
const TEMPLATES: [(&str, &str); 9] = [
    ("Cargo.toml", include_str!("../../../templates/plugin/Cargo.toml.in")),
    ("provider.toml", include_str!("../../../templates/plugin/provider.toml.in")),
    ("README.md", include_str!("../../../templates/plugin/README.md.in")),
    ("rustfmt.toml", include_str!("../../../templates/plugin/rustfmt.toml.in")),
    (".gitignore", include_str!("../../../templates/plugin/gitignore.in")),
    ("src/lib.rs", include_str!("../../../templates/plugin/lib.rs.in")),
    ("src/exec.rs", include_str!("../../../templates/plugin/exec.rs.in")),
    ("src/files.rs", include_str!("../../../templates/plugin/files.rs.in")),
    ("tests/conformance.rs", include_str!("../../../templates/plugin/conformance.rs.in")),
];

#[derive(Args)]
pub(crate) struct NewArgs {
    /// The provider's name: lower-case letters, digits, '_' and '-', starting with a letter or a digit
    name: String,
    /// The folder to make [default: sandbox-provider-NAME]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// The checkout whose crates it builds against [default: the one that this program was built from]
    #[arg(long, value_name = "CHECKOUT")]
    sandbox_path: Option<PathBuf>,
}

/// Writes the crate. On failure nothing half-made stays.
pub(super) fn run(app: &App, args: &NewArgs) -> Result<(), Failure> {
    let name = check_name(&args.name)?;
    let checkout = checkout(args.sandbox_path.as_deref())?;
    let folder = args.path.clone().unwrap_or_else(|| PathBuf::from(format!("sandbox-provider-{name}")));
    let folder = std::path::absolute(&folder).map_err(|error| Failure::usage("--path is wrong").because(error))?;
    if fs::read_dir(&folder)
        .map(|mut entries| entries.next().is_some())
        .unwrap_or_else(|_| folder.symlink_metadata().is_ok())
    {
        return Err(Failure::usage(format!("{} is there already and is not an empty folder", folder.display()))
            .with_field("--path")
            .with_help("name another one with --path"));
    }
    let files = TEMPLATES.map(|(path, text)| (path, fill(text, name, &checkout)));
    Unfinished::new(&folder).and_then(|unfinished| unfinished.write(&files)).map_err(|error| {
        Failure::failed("plugin.new", format!("cannot write the crate at {}", folder.display())).because(error)
    })?;
    if app.format.is_json() {
        let paths: Vec<_> = files.iter().map(|(path, _)| path).collect();
        return output::json_line(&json!({ "schema": SCHEMA, "name": name, "path": folder, "files": paths }));
    }
    output::data(&format!("{}\n", folder.display()))?;
    if !app.is_quiet {
        output::note(&next_steps(name, &folder));
    }
    Ok(())
}

fn next_steps(name: &str, folder: &Path) -> String {
    let library = library(name);
    format!(
        "next:\n  cd {}\n  cargo build\n  sandboxctl plugin verify target/debug/{library}\n  sandboxctl plugin install \
         target/debug/{library} && sandboxctl run --provider {name} -- echo hello",
        quote(folder.as_os_str())
    )
}

fn library(name: &str) -> String {
    format!("libsandbox_provider_{}.{}", name.replace('-', "_"), std::env::consts::DLL_EXTENSION)
}

fn check_name(name: &str) -> Result<&str, Failure> {
    ProviderManifest::check_name(name).map_err(|error| Failure::of_command(&error).with_field("NAME"))?;
    if name.starts_with('-') || name.ends_with(['-', '_']) {
        return Err(Failure::usage("the name must end with a letter or a digit").with_field("NAME"));
    }
    if BUILTIN_PROVIDERS.contains(&name) {
        return Err(Failure::usage(format!("{name:?} is the name of a built-in provider"))
            .with_field("NAME")
            .with_help(format!("take another one, such as my-{name}")));
    }
    Ok(name)
}

/// The checkout: given, or the one that this program was built from.
fn checkout(given: Option<&Path>) -> Result<String, Failure> {
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"));
    let checkout = std::path::absolute(given.unwrap_or(built_from))
        .map_err(|error| Failure::usage("--sandbox-path is wrong").because(error))?;
    let missing = ["sandbox-core", "sandbox-process", "tests/conformance"]
        .into_iter()
        .find(|part| !checkout.join(part).join("Cargo.toml").is_file());
    if let Some(missing) = missing {
        return Err(Failure::usage(format!(
            "{} is no checkout of the sandbox system: it has no {missing}",
            checkout.display()
        ))
        .with_field("--sandbox-path")
        .with_help("name one with --sandbox-path"));
    }
    let text = checkout.into_os_string().into_string();
    let text =
        text.map_err(|_| Failure::usage("the path of the checkout is not UTF-8").with_field("--sandbox-path"))?;
    // It is written into a literal string of Cargo.toml.
    match text.contains(['\'', '\n']) {
        true => Err(Failure::usage("the path of the checkout has a quote or a line end").with_field("--sandbox-path")),
        false => Ok(text),
    }
}

fn fill(template: &str, name: &str, checkout: &str) -> String {
    let type_name: String = name
        .split(['-', '_'])
        .map(|part| {
            part.chars()
                .next()
                .map(|c| c.to_ascii_uppercase())
                .into_iter()
                .chain(part.chars().skip(1))
                .collect::<String>()
        })
        .collect();
    // A type cannot start with a digit.
    let type_name =
        if type_name.starts_with(|c: char| c.is_ascii_digit()) { format!("The{type_name}") } else { type_name };
    template
        .replace("{{name}}", name)
        .replace("{{crate}}", &format!("sandbox-provider-{name}"))
        .replace("{{module}}", &format!("sandbox_provider_{}", name.replace('-', "_")))
        .replace("{{library}}", &library(name))
        .replace("{{Type}}", &type_name)
        .replace("{{checkout}}", checkout)
}

/// A folder that is being filled beside its place, removed unless it gets there.
struct Unfinished<'a> {
    folder: PathBuf,
    target: &'a Path,
}

impl<'a> Unfinished<'a> {
    fn new(target: &'a Path) -> io::Result<Self> {
        let parent = target.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::create_dir_all(parent)?;
        let folder = parent.join(format!(".sandboxctl-new-{}", std::process::id()));
        fs::create_dir(&folder)?;
        Ok(Self { folder, target })
    }

    fn write(self, files: &[(&str, String)]) -> io::Result<()> {
        for (path, text) in files {
            let path = self.folder.join(path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(path, text)?;
        }
        // Takes the place of an empty folder too.
        fs::rename(&self.folder, self.target)
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // After the rename there is nothing of that name.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::{TEMPLATES, check_name, fill};

    #[test]
    fn no_placeholder_is_left_and_nothing_unsafe_or_foreign_is_in_the_templates() {
        for (path, text) in TEMPLATES {
            let filled = fill(text, "my-cloud2", "/checkout");
            assert!(!filled.contains("{{"), "{path}");
            for word in ["abi_stable", "async-ffi", "async_ffi", "libloading"] {
                assert!(!filled.contains(word), "{path} has {word}");
            }
            // But for the line by which the compiler looks at the whole crate.
            let (before, after) = filled.split_once("\n#![forbid(unsafe_code)]\n").unwrap_or((&filled, ""));
            assert!(![before, after].concat().contains("unsafe"), "{path} has unsafe code");
            assert_eq!(!after.is_empty(), path.ends_with("lib.rs"), "{path}");
        }
        assert!(fill("{{Type}}", "my-cloud2", "").contains("MyCloud2"));
        assert_eq!(fill("{{Type}}", "9p", ""), "The9p");
    }

    #[test]
    fn the_provider_of_the_template_is_short_enough_to_be_read() {
        let (_, lib) = TEMPLATES.iter().find(|(path, _)| *path == "src/lib.rs").unwrap();
        assert!(lib.lines().count() <= 180, "{}", lib.lines().count());
    }

    #[test]
    fn the_provider_in_the_readme_is_the_one_of_the_template() {
        let readme = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        let readme = std::fs::read_to_string(readme).unwrap();
        let (_, example) = readme.split_once("```rust\n#[async_trait]").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        let (_, lib) = TEMPLATES.iter().find(|(path, _)| *path == "src/lib.rs").unwrap();
        let lib = fill(lib, "acme", "");
        for line in example.lines().map(str::trim).filter(|line| !["", "}"].contains(line)) {
            match line.strip_prefix("// ") {
                Some(others) => {
                    for name in others.split(", ") {
                        assert!(lib.contains(&format!("    async fn {name}(&self, ")), "{name}");
                    }
                }
                None => {
                    let signature = line.split(" {").next().unwrap_or_default();
                    assert!(lib.contains(signature), "{signature}");
                }
            }
        }
    }

    #[test]
    fn bad_names_are_refused() {
        for bad in ["", "Acme", "-a", "a b", "../x", "a/b", "local", "a-", "ä"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        for good in ["acme", "my-cloud", "x1", "9p"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
    }
}
