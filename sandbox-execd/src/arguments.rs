//! The command line.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

/// Where execd listens.
const PORT: u16 = 44772;

/// The name by which the program is the first process of a container.
const BOOTSTRAP: &str = "bootstrap.sh";

const USAGE: &str = "usage: execd [--port PORT | --listen ADDRESS:PORT] [--access-token TOKEN] [--port-file PATH]; or \
                     execd --image, which writes an image for `docker import`; or, called bootstrap.sh: bootstrap.sh PROGRAM \
                     [ARGUMENT...]";

/// How to run.
pub(crate) struct Arguments {
    pub(crate) listen: SocketAddr,
    /// Where the number of the port is written when it listens.
    pub(crate) port_file: Option<PathBuf>,
    /// What clients must show.
    pub(crate) token: Option<String>,
    /// The main process of the sandbox; empty: there is none.
    pub(crate) command: Vec<String>,
    /// Writes the archive of an image instead of serving.
    pub(crate) is_image: bool,
}

impl Arguments {
    /// Reads the command line; its first word tells which of the two programs this is.
    pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut words = words.into_iter();
        let name = words.next().unwrap_or_default();
        let everywhere = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let mut parsed = Self {
            listen: everywhere(PORT),
            port_file: None,
            token: std::env::var("EXECD_ACCESS_TOKEN").ok().filter(|token| !token.is_empty()),
            command: Vec::new(),
            is_image: false,
        };
        if Path::new(&name).file_name().is_some_and(|name| name == BOOTSTRAP) {
            parsed.command = words.collect();
            return Ok(parsed);
        }
        while let Some(word) = words.next() {
            let Some(option) = word.strip_prefix('-').map(|option| option.trim_start_matches('-')) else {
                // A server that tries the image out gives it a command, which is not for us.
                break;
            };
            let (option, value) = match option.split_once('=') {
                Some((option, value)) => (option.to_owned(), Some(value.to_owned())),
                None => (option.to_owned(), None),
            };
            let mut value = || value.clone().or_else(|| words.next()).ok_or_else(|| format!("{word} needs a value"));
            match option.as_str() {
                "port" => {
                    let port = value()?.parse().map_err(|_| format!("{word} must be 0 to 65535"))?;
                    parsed.listen = everywhere(port);
                }
                "listen" => {
                    parsed.listen = value()?.parse().map_err(|_| format!("{word} must be ADDRESS:PORT"))?;
                }
                "access-token" => parsed.token = Some(value()?).filter(|token| !token.is_empty()),
                "image" => parsed.is_image = true,
                "port-file" => parsed.port_file = Some(value()?.into()),
                _ => return Err(format!("{word} is not known; {USAGE}")),
            }
        }
        Ok(parsed)
    }
}

/// Writes the number of the port, whole or not at all.
pub(crate) fn tell_port(file: &Path, port: u16) -> io::Result<()> {
    let unfinished = file.with_extension("new");
    std::fs::write(&unfinished, port.to_string())?;
    std::fs::rename(unfinished, file)
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    fn parse(words: &str) -> Result<Arguments, String> {
        Arguments::parse(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_name_tells_which_program_it_is() {
        let first = parse("/opt/opensandbox/bootstrap.sh sleep --port 7").unwrap();
        assert_eq!(first.command, ["sleep", "--port", "7"]);
        let daemon = parse("/execd tail -f /dev/null").unwrap();
        assert!(daemon.command.is_empty());
        assert_eq!(daemon.listen.to_string(), "0.0.0.0:44772");
    }

    #[test]
    fn options_are_taken_in_the_forms_of_the_model() {
        assert_eq!(parse("execd --port 81").unwrap().listen.port(), 81);
        assert_eq!(parse("execd -port=82").unwrap().listen.port(), 82);
        assert_eq!(parse("execd --listen 127.0.0.1:0").unwrap().listen.to_string(), "127.0.0.1:0");
        assert_eq!(parse("execd --access-token=t").unwrap().token.as_deref(), Some("t"));
        for wrong in ["execd --port", "execd --port x", "execd --what 1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
