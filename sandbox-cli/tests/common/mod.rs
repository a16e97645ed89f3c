//! The real program, with the real local provider, in surroundings of its own.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::{
    ffi::OsStr,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

pub(crate) const BIN: &str = env!("CARGO_BIN_EXE_sandboxctl");

/// The checkout.
pub(crate) fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the checkout")
}

/// The folder of build products that the program under test is in.
pub(crate) fn products() -> &'static Path {
    Path::new(BIN).parent().expect("a program lies in a folder")
}

/// A folder that holds the plugin of the local provider and the agent, built once for all test programs.
pub(crate) fn provider_dir() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let target = products().parent().expect("products are below the target folder");
        // Test programs run one after another or at the same time: one builds, the others wait.
        let lock = fs::File::create(target.join("sandbox-cli-tests.lock")).expect("the target folder can be written");
        lock.lock().expect("the lock can be taken");
        let agent = format!("sandbox-agent-{}", std::env::consts::ARCH);
        let (library, given) = ("libsandbox_provider_local.so", std::env::var_os("SANDBOX_PROVIDER_DIR"));
        let built = match &given {
            // `cargo xtask test` gives them as they are shipped.
            Some(folder) => [library, &agent].map(|file| Path::new(folder).join(file)),
            None => build(target),
        };
        let folder = target.join("sandbox-cli-tests");
        fs::create_dir_all(&folder).unwrap();
        for (from, to) in built.iter().zip([library, &agent]) {
            // A new file, renamed: one that is in use is never overwritten.
            let part = folder.join(format!(".{}", std::process::id()));
            fs::copy(from, &part).unwrap();
            fs::rename(&part, folder.join(to)).unwrap();
        }
        folder
    })
}

/// Builds the plugin of the local provider and the agent.
fn build(target: &Path) -> [PathBuf; 2] {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "-p", "sandbox-provider-local", "-p", "sandbox-agent"]).current_dir(checkout());
    build.env("CARGO_TARGET_DIR", target);
    if products().ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success(), "the local provider cannot be built");
    ["libsandbox_provider_local.so", "sandbox-agent"].map(|file| products().join(file))
}

/// A command of the program with nothing of this process's configuration.
pub(crate) fn sandboxctl<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = bare(args);
    command.env("SANDBOX_PROVIDER_DIR", provider_dir());
    command
}

/// The same without the local provider: for what must not need it.
pub(crate) fn bare<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (home, temp) = (place.join("home"), place.join("temp"));
    fs::create_dir_all(&home).and_then(|()| fs::create_dir_all(&temp)).expect("the target folder can be written");
    let mut command = Command::new(BIN);
    command.args(args).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", &home);
    command.env("TMPDIR", &temp).current_dir(&home);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What came of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs it to its end.
pub(crate) fn run(mut command: Command) -> Ran {
    command.output().expect("the program starts").into()
}

/// `sandboxctl ARGS`, to its end.
pub(crate) fn ctl<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Ran {
    run(sandboxctl(args))
}

/// Runs it with this input.
pub(crate) fn run_with_input(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("the program starts");
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that does not read it all is no failure.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    })
}

/// Unique for a test.
pub(crate) fn token(name: &str) -> String {
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    format!("{name}-{}-{nanos}", std::process::id())
}

/// Processes other than `except` whose environment holds the text. A zombie has none.
pub(crate) fn processes_with(text: &str, except: u32) -> Vec<u32> {
    let holds = |pid: &u32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| environ.windows(text.len()).any(|part| part == text.as_bytes()))
    };
    let entries = fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != except).filter(holds).collect()
}

/// Asks until the answer is yes, at most ten seconds.
pub(crate) fn eventually(mut is_true: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        if is_true() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal by name.
pub(crate) fn send(child: &Child, signal: &str) {
    let status = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Waits for the end, at most this long.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}
