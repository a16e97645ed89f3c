//! What a provider's conformance run needs besides the plugin: an engine, a stand-in for a service, or nothing.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use crate::{
    build::{self, Profile},
    command::root,
    engine::{self, Engine},
    needs, python,
};

/// The variable in which tests and doubles find the program inside of sandboxes.
pub(crate) const AGENT: &str = "SANDBOX_AGENT";

/// The variable in which a linked suite takes settings and spec.
const VARIANT: &str = "SANDBOX_TEST_VARIANT";

/// In a file of settings: the folder with programs for images that have none.
const TOOLS: &str = "{tools}";

/// In a file of settings: the start of what the real server of OpenSandbox tells of itself.
const REAL: &str = "{real:";

/// The backend of a run. It ends with this value.
#[derive(Default)]
pub(crate) struct Backend {
    _forwarding: Option<NoForwarding>,
    _engine: Option<Engine>,
    _double: Option<Running>,
    /// The service itself, from when a file of settings has asked for it.
    real: Option<(Running, Map<String, Value>)>,
    /// The provider's settings.
    pub(crate) config: Value,
    /// What sandboxes are made from.
    pub(crate) spec: Value,
    /// Variables of the linked test.
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// The variable in which the linked test takes settings and spec of any file.
    pub(crate) variant_variable: Option<&'static str>,
}

impl Backend {
    /// Starts what this provider needs. The workspace is built.
    pub(crate) fn start(provider: &str) -> Result<Self> {
        match provider {
            "daytona" => daytona(),
            "docker" => docker(),
            "fargate" => fargate(),
            "opensandbox" => opensandbox(),
            _ => Ok(Self::default()),
        }
    }

    /// A file of settings with what only a run knows.
    pub(crate) fn filled(&mut self, mut text: String) -> Result<String> {
        if text.contains(TOOLS) {
            text = text.replace(TOOLS, &engine::tools()?.display().to_string());
        }
        if text.contains(REAL) {
            for (name, value) in self.real()? {
                text = text.replace(&format!("{REAL}{name}}}"), value.as_str().unwrap_or_default());
            }
        }
        Ok(text)
    }

    /// What the real server tells of itself. It is started by the first who asks.
    fn real(&mut self) -> Result<&Map<String, Value>> {
        if self.real.is_none() {
            needs::programs()?;
            engine::needs()?;
            let (name, packages, variable, program) = python::OPENSANDBOX;
            let mut command = Command::new(Profile::Dev.folder().join("opensandbox-real"));
            command.env(variable, python::environment(name, packages)?.join(program));
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
            let (real, told) = Running::start(&mut command)?;
            self.real = Some((real, serde_json::from_str(&told).context("the real server told no settings")?));
        }
        Ok(&self.real.as_ref().expect("it was started just now").1)
    }

    /// Ends it. The real server fails when anything of a sandbox is left.
    pub(crate) fn end(mut self) -> Result<()> {
        self.real.take().map_or(Ok(()), |(mut real, _)| real.end())
    }
}

fn docker() -> Result<Backend> {
    let engine = Engine::start()?;
    let address = engine.address().to_owned();
    Ok(Backend {
        _forwarding: NoForwarding::set(),
        config: json!({ "host": address, "use_docker_config": false }),
        spec: json!({ "image": "sandbox-test/busybox:1" }),
        environment: vec![(engine::VARIABLE, address.into())],
        variant_variable: Some(VARIANT),
        _engine: Some(engine),
        ..Backend::default()
    })
}

/// The engine of the tests sets no rules of a firewall, so this machine must not lead from one of its networks to another.
/// Another engine may have let it. Put back at the end.
struct NoForwarding(String);

impl NoForwarding {
    const FILE: &str = "/proc/sys/net/ipv4/ip_forward";

    fn set() -> Option<Self> {
        let before = fs::read_to_string(Self::FILE).ok()?;
        fs::write(Self::FILE, "0").ok()?;
        Some(Self(before))
    }
}

impl Drop for NoForwarding {
    fn drop(&mut self) {
        // Whoever could set it can put it back.
        let _ = fs::write(Self::FILE, &self.0);
    }
}

fn daytona() -> Result<Backend> {
    let folder = root().join("tests/doubles/daytona");
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (settings, spec) = (read("settings.json")?, read("spec.json")?);
    let (double, address) = Running::start(&mut Command::new(Profile::Dev.folder().join("daytona-double")))?;
    Ok(Backend {
        config: serde_json::from_str(&settings.replace("{url}", &address)).context("settings.json")?,
        spec: serde_json::from_str(&spec).context("spec.json")?,
        _double: Some(double),
        ..Backend::default()
    })
}

fn fargate() -> Result<Backend> {
    needs::programs()?;
    let (name, packages, variable, program) = python::MOTO;
    let environment = vec![
        (variable, python::environment(name, packages)?.join(program).into()),
        (AGENT, build::agent(&build::native())?.into()),
    ];
    let mut command = Command::new(Profile::Dev.folder().join("fargate-double"));
    command.envs(environment.iter().map(|(name, value): &(_, OsString)| (name, value)));
    let (double, settings) = Running::start(&mut command)?;
    Ok(Backend {
        config: serde_json::from_str(&settings).context("the double told no settings")?,
        spec: json!({ "image": "sandbox-test/busybox:1" }),
        environment,
        _double: Some(double),
        ..Backend::default()
    })
}

fn opensandbox() -> Result<Backend> {
    const KEY: &str = "key-of-the-conformance-run";
    let execd = build::execd(&build::native())?;
    let mut command = Command::new(Profile::Dev.folder().join("opensandbox-double"));
    command.arg(KEY).env("OPENSANDBOX_EXECD", &execd);
    let (double, address) = Running::start(&mut command)?;
    Ok(Backend {
        config: json!({
            "connection": { "domain": address, "api_key": KEY, "use_server_proxy": true },
            "create": { "default_image": "double", "connect_poll_s": 0.2 },
            "operations": { "native": "required" },
        }),
        environment: vec![("OPENSANDBOX_EXECD", execd.into())],
        variant_variable: Some(VARIANT),
        _double: Some(double),
        ..Backend::default()
    })
}

/// A double. It serves until its standard input ends, and that does with this value.
struct Running {
    child: Child,
    input: Option<ChildStdin>,
}

impl Running {
    /// Starts it, and gives the address that it tells.
    fn start(command: &mut Command) -> Result<(Self, String)> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a double")?;
        let input = child.stdin.take();
        let mut running = Self { child, input };
        let output = running.child.stdout.take().context("the double has no output")?;
        let mut address = String::new();
        BufReader::new(output).read_line(&mut address).context("the double told no address")?;
        match address.trim() {
            "" => bail!("the double did not start"),
            address => Ok((running, address.to_owned())),
        }
    }

    /// Ends it, and says whether that went well.
    fn end(&mut self) -> Result<()> {
        drop(self.input.take());
        match self.child.wait().context("a double was lost")? {
            status if status.success() => Ok(()),
            status => bail!("a double ended badly, see above: {status}"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Whoever wants to know how it ended has ended it.
        let _ = self.end();
    }
}

/// Settings with others over them, section by section.
pub(crate) fn merged(mut base: Value, over: Value) -> Value {
    match (&mut base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                let merged = merged(base.remove(&key).unwrap_or_default(), value);
                base.insert(key, merged);
            }
        }
        (base, over) => *base = over,
    }
    base
}
