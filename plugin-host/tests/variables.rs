//! The environment variables, each in a process of its own.
#![cfg(feature = "dynamic")]

mod common;

use std::{path::Path, process::Command};

use common::{CLibrary, example, folder};

/// Lists the providers in another process and gives what it printed.
fn report_with(variables: &[(&str, &str)], folder: &Path) -> String {
    let mut command = Command::new(example("list_providers"));
    command.arg("local").current_dir(folder).env_clear().envs(variables.iter().copied());
    let output = command.output().expect("this program can run itself");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn plugins_are_found_in_the_variable_and_in_the_data_folder_but_never_in_the_working_folder() {
    let (given, home, data, here) = (folder(), folder(), folder(), folder());
    let plugins = home.path().join(".local/share/sandbox/plugins");
    let of_data = data.path().join("sandbox/plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    std::fs::create_dir_all(&of_data).unwrap();
    CLibrary::provider("given").build(&given.path().join("libx.so"));
    CLibrary::provider("of-home").build(&plugins.join("libx.so"));
    CLibrary::provider("of-data").build(&of_data.join("libx.so"));
    CLibrary::provider("here").build(&here.path().join("libhere.so"));
    let text = |path: &Path| path.display().to_string();
    let (given_text, home_text) = (text(given.path()), text(home.path()));
    let path = format!("{given_text}::");
    let shown = report_with(&[("SANDBOX_PLUGIN_PATH", &path), ("HOME", &home_text)], here.path());
    assert!(shown.contains("given Discovered Ready") && shown.contains("of-home Discovered Ready"), "{shown}");
    assert!(!shown.contains("here Discovered"), "{shown}");
    let shown = report_with(&[("XDG_DATA_HOME", &text(data.path())), ("HOME", &home_text)], here.path());
    assert!(shown.contains("of-data Discovered") && !shown.contains("of-home"), "{shown}");
    let shown = report_with(&[("SANDBOX_PLUGIN_PATH", "/a:plugins")], here.path());
    assert!(shown.contains("SANDBOX_PLUGIN_PATH: plugins is not an absolute path"), "{shown}");
}

#[test]
fn built_ins_are_looked_for_in_the_variable_s_folder_and_then_beside_the_program() {
    let (given, here) = (folder(), folder());
    let given_text = given.path().display().to_string();
    let shown = report_with(&[("SANDBOX_PROVIDER_DIR", &given_text)], here.path());
    let beside = example("providers/libsandbox_provider_local.so");
    let first = shown.find(&format!("{given_text}/libsandbox_provider_local.so"));
    let second = shown.find(&beside.display().to_string());
    assert!(first.is_some() && second.is_some() && first < second, "{shown}");
}
