//! The flags that say what a sandbox and its command should be; the commands that make or use one share them.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::Args;
use sandbox_core::{ByteString, Env, ExecRequest, NetworkMode, SandboxSpec, VolumeMount};
use serde_json::Value;

use crate::{
    failure::Failure,
    values::{self, EnvArgument},
};

/// Variables.
#[derive(Args)]
pub(crate) struct EnvArgs {
    /// Set a variable; KEY alone copies yours
    #[arg(short = 'e', long = "env", value_name = "KEY[=VALUE]")]
    env: Vec<OsString>,
    /// Read variables from a file, before those of -e
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
}

impl EnvArgs {
    /// Puts them into an environment.
    ///
    /// # Errors
    /// Exit code 2 for a name that none can have, or a file that cannot be read.
    pub(crate) fn fill(&self, env: &mut Env) -> Result<(), Failure> {
        let mut variables = Vec::new();
        for path in &self.env_file {
            variables.extend(values::read_env_file(path)?);
        }
        for text in &self.env {
            let variable = EnvArgument::parse(text)
                .map_err(|message| Failure::usage(format!("--env: {message}")).with_field("--env"))?;
            variables.push(variable);
        }
        for (name, value) in variables.into_iter().filter_map(|variable| variable.resolve()) {
            env.insert(name, value);
        }
        Ok(())
    }
}

/// Limits, directory and user of a command.
#[derive(Args)]
pub(crate) struct CommandArgs {
    /// Kill the command after this long, exit 124 (90s, 5m, 1h30m, 500ms, 1.5)
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<f64>,
    /// Kill the command when it was silent for this long, exit 124
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    idle_timeout: Option<f64>,
    /// Working directory of the command
    #[arg(short = 'w', long, value_name = "DIR")]
    workdir: Option<OsString>,
    /// User of the command: NAME, UID, UID:GID or NAME:GROUP
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

impl CommandArgs {
    /// The command. Checked.
    ///
    /// # Errors
    /// Exit code 2, naming the field.
    pub(crate) fn request(
        &self,
        command: impl IntoIterator<Item = impl Into<ByteString>>,
    ) -> Result<ExecRequest, Failure> {
        let mut request = ExecRequest::argv(command);
        request.timeout_s = self.timeout;
        request.idle_timeout_s = self.idle_timeout;
        request.cwd = self.workdir.clone().map(ByteString::from);
        request.user.clone_from(&self.user);
        request.validate().map_err(|error| Failure::of_command(&error))?;
        Ok(request)
    }
}

/// What a sandbox should be.
#[derive(Args)]
pub(crate) struct SpecArgs {
    /// Read the spec from a JSON file; flags are laid over it
    #[arg(short = 'f', long = "file", value_name = "SPEC.json")]
    file: Option<PathBuf>,
    /// Longest life of the sandbox, also when this program is gone
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    ttl: Option<f64>,
    #[command(flatten)]
    env: EnvArgs,
    /// Let a port of the sandbox be reached; may be repeated
    #[arg(short = 'p', long = "port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,
    /// Mount a path of this machine, or a volume by name
    #[arg(short = 'v', long = "volume", value_name = "SRC:DST[:ro]", value_parser = values::volume)]
    volume: Vec<VolumeMount>,
    /// Cores, fractions allowed
    #[arg(long, value_name = "CORES")]
    cpus: Option<f64>,
    /// Memory (512m, 2g)
    #[arg(long, value_name = "SIZE", value_parser = values::mebibytes)]
    memory: Option<u64>,
    /// How many processes may exist at once
    #[arg(long, value_name = "COUNT")]
    pids: Option<u64>,
    /// What the sandbox can reach: none, host, default, or a network by name
    #[arg(long, value_name = "none|host|NAME")]
    network: Option<String>,
    /// A name for people
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A label
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::pair)]
    label: Vec<(String, String)>,
    /// A setting that only the provider knows; the value is JSON or text
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::option_value)]
    set: Vec<(String, Value)>,
}

impl SpecArgs {
    /// The spec: the file, then the flags. Checked.
    ///
    /// # Errors
    /// Exit code 2, naming the field or the file.
    pub(crate) fn spec(&self, image: Option<&str>) -> Result<SandboxSpec, Failure> {
        let mut spec = match &self.file {
            Some(path) => read(path)?,
            None => SandboxSpec::default(),
        };
        if let Some(image) = image {
            spec.image = Some(image.to_owned());
        }
        self.env.fill(&mut spec.env)?;
        for port in &self.port {
            if !spec.ports.contains(port) {
                spec.ports.push(*port);
            }
        }
        spec.ttl_s = self.ttl.or(spec.ttl_s);
        spec.volumes.extend(self.volume.iter().cloned());
        spec.resources.cpu = self.cpus.or(spec.resources.cpu);
        spec.resources.memory_mib = self.memory.or(spec.resources.memory_mib);
        spec.resources.pids = self.pids.or(spec.resources.pids);
        spec.name = self.name.clone().or(spec.name);
        spec.metadata.extend(self.label.iter().cloned());
        spec.provider_options.extend(self.set.iter().cloned());
        if let Some(network) = &self.network {
            spec.network = Some(match network.as_str() {
                "none" => NetworkMode::None,
                "host" => NetworkMode::Host,
                "default" => NetworkMode::Default,
                name => NetworkMode::Named(name.to_owned()),
            });
        }
        spec.validate().map_err(|error| Failure::of_command(&error))?;
        Ok(spec)
    }
}

fn read(path: &Path) -> Result<SandboxSpec, Failure> {
    let bad = |what: String| Failure::usage(format!("{}: {what}", path.display())).with_field("--file");
    let text = std::fs::read(path).map_err(|error| {
        Failure::usage(format!("cannot read the spec {}", path.display())).because(error).with_field("--file")
    })?;
    let value: Value = serde_json::from_slice(&text)
        // Only the place: what stands there may be a secret.
        .map_err(|error| bad(format!("no JSON at line {}, column {}", error.line(), error.column())))?;
    SandboxSpec::from_json(value).map_err(|error| Failure::of_command(&error))
}
