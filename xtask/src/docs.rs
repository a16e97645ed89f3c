//! The commands of the documentation, run.
//!
//! In every Markdown file each line of a block marked `sh` is a command. It must exit with 0, or with N when it ends in
//! `# exits N`. The commands of a file run one after the other with a home folder of their own and sandboxctl on the path:
//! those of cargo xtask in the repository, the others in that home. Those that CI runs itself, and those that take minutes
//! and are run on demand, are left out by name.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};

use crate::{
    build::{self, Profile, Selection},
    command::{as_from_a_shell, output, root, target},
    dist,
};

/// Commands that CI runs itself, around or inside of this one.
const RUN_BY_CI: &[&str] = &["cargo xtask test", "cargo xtask check", "cargo xtask docs", ".ci/run"];

/// Commands that take minutes and are run when somebody asks for them.
const RUN_ON_DEMAND: &[&str] = &["cargo xtask dist", "cargo xtask bench abi", "cargo xtask bench abi --write"];

#[derive(Debug, PartialEq)]
struct Documented {
    file: PathBuf,
    line: usize,
    text: String,
    exit_code: i32,
}

pub(crate) fn docs() -> Result<ExitCode> {
    let sandboxctl = build::sandboxctl(Profile::Dev, &Selection::Workspace)?;
    let scratch = target().join("docs-scratch");
    let mut run = 0;
    let mut failed = 0;
    for file in markdown_files()? {
        let text = fs::read_to_string(root().join(&file)).with_context(|| format!("cannot read {}", file.display()))?;
        let commands = commands(&file, &text);
        if commands.is_empty() {
            continue;
        }
        if scratch.exists() {
            fs::remove_dir_all(&scratch).context("cannot empty the scratch folder")?;
        }
        fs::create_dir_all(&scratch).context("cannot make the scratch folder")?;
        for command in commands {
            if RUN_BY_CI.contains(&command.text.as_str()) || RUN_ON_DEMAND.contains(&command.text.as_str()) {
                continue;
            }
            run += 1;
            if let Err(error) = run_one(&command, &sandboxctl, &scratch) {
                failed += 1;
                eprintln!("error: {}:{}: {error:#}", command.file.display(), command.line);
            }
        }
    }
    if scratch.exists() {
        fs::remove_dir_all(&scratch).context("cannot empty the scratch folder")?;
    }
    println!("documented commands: {} passed, {failed} failed", run - failed);
    Ok(if failed == 0 && run > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn markdown_files() -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"]).current_dir(root());
    // Templates become the documentation of somebody else's crate; the test of `plugin new` runs them.
    Ok(output(git)?.lines().filter(|file| !file.contains("templates/")).map(PathBuf::from).collect())
}

fn commands(file: &Path, text: &str) -> Vec<Documented> {
    let mut found = Vec::new();
    let mut in_block = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(kind) = line.strip_prefix("```") {
            in_block = !in_block && kind == "sh";
            continue;
        }
        if !in_block || line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (command, exit_code) = match line.split_once("# exits ") {
            Some((command, code)) => {
                (command, code.split_whitespace().next().and_then(|code| code.parse().ok()).unwrap_or(-1))
            }
            None => (line.split_once("  #").map_or(line, |(command, _)| command), 0),
        };
        let text = command.trim().to_owned();
        found.push(Documented { file: file.to_owned(), line: index + 1, text, exit_code });
    }
    found
}

fn run_one(command: &Documented, sandboxctl: &Path, home: &Path) -> Result<()> {
    let mut path = sandboxctl.parent().expect("a program has a folder").as_os_str().to_owned();
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());
    // What cargo does to this workspace works in the repository only; everything else works anywhere.
    let is_ours = ["cargo xtask", "cargo run "].iter().any(|start| command.text.starts_with(start));
    let folder = if is_ours { root() } else { home.to_owned() };
    let mut bash = Command::new("bash");
    bash.args(["-c", &command.text]).current_dir(folder).env("PATH", path).env("HOME", home);
    for (variable, default) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        if env::var_os(variable).is_none()
            && let Some(real_home) = env::home_dir()
        {
            bash.env(variable, real_home.join(default));
        }
    }
    for variable in ["XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "CARGO_TARGET_DIR"] {
        bash.env_remove(variable);
    }
    as_from_a_shell(&mut bash);
    // They build into our target folder, wherever that is.
    if is_ours {
        bash.env("CARGO_TARGET_DIR", target()).env(dist::UNOPTIMISED, "1").env(build::WHOLE, "1");
    } else {
        // A plugin's crate needs what the fixtures of tests/abi need: that is built once, in the folder of those.
        bash.env("CARGO_BUILD_BUILD_DIR", target().join("fixtures/target")).env("CARGO_PROFILE_DEV_DEBUG", "0");
    }
    let output = bash.output().context("cannot start bash")?;
    let code = output.status.code().unwrap_or(-1);
    if code != command.exit_code {
        bail!(
            "{} exited with {code}, not {}: {}{}",
            command.text,
            command.exit_code,
            String::from_utf8_lossy(&output.stdout).trim(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::commands;

    #[test]
    fn only_lines_of_sh_blocks_are_commands() {
        let text = "x\n```sh\ncargo a\n# note\nfalse # exits 1\nls   # what\n```\n```rust\nno\n```\n```\nno\n```\n";
        let found: Vec<_> = commands(Path::new("f"), text)
            .into_iter()
            .map(|command| (command.line, command.text, command.exit_code))
            .collect();
        assert_eq!(found, [(3, "cargo a".to_owned(), 0), (5, "false".to_owned(), 1), (6, "ls".to_owned(), 0)]);
    }
}
