//! The command line of `sandbox-agent serve`.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;

/// Where clients come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// An inherited stream socket: a connected one is the only client there will be, a listening one brings many.
    Fd(RawFd),
    /// A unix socket is made at this path, with mode 0600.
    ListenUnix(PathBuf),
    /// A TCP socket is made at this address. Everybody who reaches it may try: the token decides.
    ListenTcp(SocketAddr),
    /// One client on standard input and output.
    Stdio,
}

/// Where the configuration is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ConfigSource {
    /// Every default.
    #[default]
    Default,
    /// This text.
    Text(String),
    /// A descriptor, read to its end.
    Fd(RawFd),
    /// A variable of the environment, which is removed.
    Variable(String),
    /// A file, which is removed.
    File(PathBuf),
}

/// Where the token is that clients must show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// A variable of the environment, which is removed at once.
    Variable(String),
    /// A file, which is removed at once.
    File(PathBuf),
    /// A variable of the environment, which is removed at once: not the token, but its SHA-256 in hexadecimal digits. For
    /// an agent that is told its settings in a place that others can read.
    Sha256Variable(String),
}

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeArguments {
    /// Where clients come from.
    pub endpoint: Endpoint,
    /// Where the configuration is.
    pub config: ConfigSource,
    /// Where the token is that clients must show.
    pub token: Option<TokenSource>,
}

const USAGE: &str = "serve takes one of --fd N, --listen-unix PATH, --listen-tcp ADDRESS:PORT and --stdio; one of \
                     --config JSON, --config-fd N, --config-env NAME and --config-file PATH; one of --token-env NAME, \
                     --token-file PATH and --token-sha256-env NAME";

impl ServeArguments {
    /// Reads `(--fd N | --listen-unix PATH | --listen-tcp ADDRESS:PORT | --stdio) [--config JSON | --config-fd N |
    /// --config-env NAME | --config-file PATH] [--token-env NAME | --token-file PATH | --token-sha256-env NAME]`.
    ///
    /// # Errors
    /// What is wrong with the arguments, in one line.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let (mut endpoint, mut config, mut token) = (None, ConfigSource::Default, None);
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            if name == "--stdio" {
                endpoint = Some(Endpoint::Stdio);
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value; {USAGE}"))?;
            let number = || value.parse::<RawFd>().ok().filter(|fd| *fd >= 0).ok_or("must be a descriptor's number");
            match name.as_str() {
                "--fd" => endpoint = Some(Endpoint::Fd(number().map_err(|why| format!("--fd {why}"))?)),
                "--listen-unix" => endpoint = Some(Endpoint::ListenUnix(value.into())),
                "--listen-tcp" => {
                    let address = value.parse().map_err(|_| "--listen-tcp must be an address and a port")?;
                    endpoint = Some(Endpoint::ListenTcp(address));
                }
                "--config" => config = ConfigSource::Text(value),
                "--config-fd" => config = ConfigSource::Fd(number().map_err(|why| format!("--config-fd {why}"))?),
                "--config-env" => config = ConfigSource::Variable(value),
                "--config-file" => config = ConfigSource::File(value.into()),
                "--token-env" => token = Some(TokenSource::Variable(value)),
                "--token-file" => token = Some(TokenSource::File(value.into())),
                "--token-sha256-env" => token = Some(TokenSource::Sha256Variable(value)),
                _ => return Err(format!("unknown argument {name}; {USAGE}")),
            }
        }
        let endpoint = endpoint.ok_or_else(|| USAGE.to_owned())?;
        let is_reachable = matches!(endpoint, Endpoint::ListenUnix(_) | Endpoint::ListenTcp(_));
        if is_reachable && token.is_none() {
            return Err(
                "a listener needs --token-env, --token-file or --token-sha256-env: others can reach it".to_owned()
            );
        }
        Ok(Self { endpoint, config, token })
    }
}

#[cfg(test)]
mod tests {
    use super::{ConfigSource, Endpoint, ServeArguments, TokenSource};

    fn parse(text: &str) -> Result<ServeArguments, String> {
        ServeArguments::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn only_what_is_known_and_complete_is_taken() {
        let all = parse("--fd 3 --config-fd 4 --token-env T").unwrap();
        assert_eq!((all.endpoint, all.config), (Endpoint::Fd(3), ConfigSource::Fd(4)));
        let all = parse("--listen-tcp 0.0.0.0:7 --token-sha256-env T").unwrap();
        assert_eq!(all.endpoint, Endpoint::ListenTcp("0.0.0.0:7".parse().unwrap()));
        assert_eq!(all.token, Some(TokenSource::Sha256Variable("T".to_owned())));
        let listeners = ["--listen-unix /x", "--listen-tcp 0.0.0.0:7", "--listen-tcp x:7 --token-env T"];
        for bad in ["", "--fd", "--fd x", "--fd -1", "--config {}", "--what 1"].into_iter().chain(listeners) {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
