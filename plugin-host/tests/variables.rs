//! The environment variables, each in a process of its own.
#![cfg(feature = "dynamic")]

mod common;

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown},
    path::Path,
    process::Command,
};

use common::{CLibrary, example, folder, set_mode};

/// Lists the providers in another process and gives what it printed.
fn report_with(variables: &[(&str, &str)], folder: &Path) -> String {
    report_of(&example("list_providers"), variables, folder)
}

fn report_of(program: &Path, variables: &[(&str, &str)], folder: &Path) -> String {
    let mut command = Command::new(program);
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

#[test]
fn a_program_with_more_rights_than_its_caller_takes_no_folder_from_the_environment() {
    const NOBODY: u32 = 65_534;
    // Not in a temporary folder: those are often mounted so that this does not work.
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (program, data) = (place.path().join("list_providers"), place.path().join("data"));
    fs::copy(example("list_providers"), &program).unwrap();
    CLibrary::provider("given").build(&place.path().join("libgiven.so"));
    fs::create_dir_all(data.join("sandbox/plugins")).unwrap();
    CLibrary::provider("of-data").build(&data.join("sandbox/plugins/libx.so"));
    let text = |path: &Path| path.display().to_string();
    let (given, data) = (text(place.path()), text(&data));
    let variables =
        [("SANDBOX_PLUGIN_PATH", given.as_str()), ("SANDBOX_PROVIDER_DIR", &given), ("XDG_DATA_HOME", &data)];
    let shows_all = |shown: &str| {
        ["given Discovered", "of-data Discovered", &format!("{given}/libsandbox_provider_local.so")]
            .map(|part| shown.contains(part))
    };
    // With the rights of the user who calls it: nothing special.
    set_mode(&program, 0o4755);
    let shown = report_of(&program, &variables, place.path());
    assert_eq!(shows_all(&shown), [true; 3], "{shown}");
    // Only root can give a program to somebody else, whose rights it then has.
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        chown(&program, Some(NOBODY), None).unwrap();
        set_mode(&program, 0o4755);
        let shown = report_of(&program, &variables, place.path());
        let why = "is the target folder mounted nosuid, or does this run with no-new-privileges?";
        assert_eq!(shows_all(&shown), [false; 3], "{why} {shown}");
    }
}
