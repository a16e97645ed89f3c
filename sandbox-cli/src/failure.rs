//! What a command fails with, and how that is told.

use std::fmt;

use sandbox_core::{ErrorKind, SandboxError};
use serde_json::{Value, json};

use crate::{
    exit,
    output::{self, Format},
};

/// Why a command failed: for people, for machines, and for the shell.
#[derive(Debug)]
pub(crate) struct Failure(Box<Inner>);

#[derive(Debug)]
struct Inner {
    exit: u8,
    code: String,
    message: String,
    causes: Vec<String>,
    help: Option<String>,
    field: Option<String>,
    retryable: bool,
    is_silent: bool,
}

impl Failure {
    /// A failure with this exit code. `code` is for machines and never changes.
    pub(crate) fn new(exit: u8, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            exit,
            code: code.into(),
            message: message.into(),
            causes: Vec::new(),
            help: None,
            field: None,
            retryable: false,
            is_silent: false,
        }))
    }

    /// The command line, a spec or the configuration is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(exit::USAGE, "usage", message)
    }

    /// Our own command failed.
    pub(crate) fn failed(code: &str, message: impl Into<String>) -> Self {
        Self::new(exit::FAILED, code, message)
    }

    /// The system around a command failed.
    pub(crate) fn infrastructure(message: impl Into<String>) -> Self {
        Self::new(exit::INFRASTRUCTURE, "internal", message)
    }

    /// Everything that there was to say is said already.
    pub(crate) fn silent(exit: u8) -> Self {
        let mut silent = Self::new(exit, "", "");
        silent.0.is_silent = true;
        silent
    }

    /// Nobody reads our standard output any more.
    pub(crate) fn broken_pipe() -> Self {
        Self::silent(exit::BROKEN_PIPE)
    }

    /// An error while one of our own commands, which runs nothing, was at work.
    pub(crate) fn of_command(error: &SandboxError) -> Self {
        let exit = match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::Unsupported => exit::USAGE,
            ErrorKind::Unauthorized => exit::CREDENTIALS,
            _ => exit::FAILED,
        };
        Self::from_error(exit, error)
    }

    /// An error while a sandbox was made, used or removed for somebody's command.
    pub(crate) fn of_run(error: &SandboxError) -> Self {
        let exit = match error.kind() {
            // Nothing has run: what was asked for cannot be had.
            ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::Unavailable => exit::USAGE,
            ErrorKind::Unauthorized => exit::CREDENTIALS,
            _ => exit::INFRASTRUCTURE,
        };
        Self::from_error(exit, error)
    }

    /// An error after the command was started: its kind changes nothing, the system around it failed.
    pub(crate) fn of_broken_run(error: &SandboxError) -> Self {
        Self::from_error(exit::INFRASTRUCTURE, error)
    }

    /// A provider that is not there or not to be reached: never replaced by another one.
    pub(crate) fn of_provider(error: &SandboxError) -> Self {
        let (exit, code) = match error.kind() {
            ErrorKind::NotFound => (exit::USAGE, "provider.not_found"),
            ErrorKind::AlreadyExists => (exit::USAGE, "provider.ambiguous"),
            ErrorKind::InvalidInput => (exit::USAGE, "provider.invalid_config"),
            ErrorKind::Unavailable => (exit::USAGE, UNREACHABLE),
            ErrorKind::Unauthorized => (exit::CREDENTIALS, "unauthorized"),
            ErrorKind::Plugin => (exit::INFRASTRUCTURE, "plugin"),
            kind => (exit::INFRASTRUCTURE, kind.as_str()),
        };
        let mut failure = Self::from_error(exit, error);
        failure.0.code = code.to_owned();
        match failure.0.help {
            None => failure.with_help("see what is there with: sandboxctl providers ls"),
            Some(_) => failure,
        }
    }

    fn from_error(exit: u8, error: &SandboxError) -> Self {
        let code = match error.kind() {
            ErrorKind::Unavailable => UNREACHABLE,
            kind => kind.as_str(),
        };
        let mut failure = Self::new(exit, code, error.message());
        failure.0.causes = error.chain();
        failure.0.help = error.help().map(str::to_owned);
        failure.0.field = error.field().map(str::to_owned);
        failure.0.retryable = error.is_retryable();
        if failure.0.help.is_none()
            && let (ErrorKind::Unavailable, Some(provider)) = (error.kind(), error.provider())
        {
            failure.0.help = Some(format!("look at what it needs with: sandboxctl providers doctor {provider}"));
        }
        failure
    }

    /// Says what to do about it: best a command that can be run.
    #[must_use]
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Names what is wrong.
    #[must_use]
    pub(crate) fn with_field(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    /// The same failure with another code for machines.
    #[must_use]
    pub(crate) fn with_code(mut self, code: &str) -> Self {
        self.0.code = code.to_owned();
        self
    }

    /// The same failure with another exit code.
    #[must_use]
    pub(crate) fn with_exit(mut self, exit: u8) -> Self {
        self.0.exit = exit;
        self
    }

    /// Adds a cause.
    #[must_use]
    pub(crate) fn because(mut self, cause: impl fmt::Display) -> Self {
        self.0.causes.push(cause.to_string());
        self
    }

    /// The code that the process exits with.
    pub(crate) fn exit(&self) -> u8 {
        self.0.exit
    }

    /// The code for machines.
    pub(crate) fn code(&self) -> &str {
        &self.0.code
    }

    /// The line for people.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// What to do about it.
    pub(crate) fn help(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// Tells it on standard error, unless there is nothing left to say.
    pub(crate) fn report(&self, format: Format, colour: bool) {
        if self.0.is_silent {
            return;
        }
        if format.is_json() {
            output::note(&self.to_json().to_string());
        } else {
            output::note(&self.to_text(colour));
        }
    }

    fn to_json(&self) -> Value {
        let mut error = json!({
            "code": self.0.code,
            "message": self.0.message,
            "field": self.0.field,
            "help": self.0.help,
            "retryable": self.0.retryable,
        });
        if !self.0.causes.is_empty() {
            error["causes"] = json!(self.0.causes);
        }
        json!({ "error": error })
    }

    fn to_text(&self, colour: bool) -> String {
        // The text for people names the code only where it says more than the words before it.
        let says_more = self.0.code.contains('.') && !self.0.code.starts_with("exec.");
        let code = if says_more { format!(" ({})", self.0.code) } else { String::new() };
        let mut text = format!("{} {}{code}", output::paint("error:", output::RED, colour), self.0.message);
        for cause in &self.0.causes {
            text.push_str(&format!("\n  caused by: {cause}"));
        }
        if let Some(help) = &self.0.help {
            text.push_str(&format!("\nhelp: {help}"));
        }
        text
    }
}

const UNREACHABLE: &str = "provider.unreachable";

#[cfg(test)]
mod tests {
    use sandbox_core::SandboxError;

    use super::Failure;
    use crate::exit;

    #[test]
    fn the_text_has_error_causes_and_help_in_this_order() {
        let error = SandboxError::unavailable("cannot reach opensandbox at http://localhost:8080")
            .with_source(std::io::Error::from_raw_os_error(111))
            .with_provider("opensandbox");
        let text = Failure::of_provider(&error).to_text(false);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "error: cannot reach opensandbox at http://localhost:8080 (provider.unreachable)");
        assert_eq!(lines[1], "  caused by: Connection refused (os error 111)");
        assert_eq!(lines[2], "help: look at what it needs with: sandboxctl providers doctor opensandbox");
    }

    #[test]
    fn every_class_of_error_has_its_exit_code() {
        let cases = [
            (Failure::of_run(&SandboxError::invalid_input("ttl_s", "x")), exit::USAGE),
            (Failure::of_run(&SandboxError::unauthorized("x")), exit::CREDENTIALS),
            (Failure::of_run(&SandboxError::create("x")), exit::INFRASTRUCTURE),
            (Failure::of_provider(&SandboxError::not_found("x")), exit::USAGE),
            (Failure::of_provider(&SandboxError::unavailable("x")), exit::USAGE),
            (Failure::of_provider(&SandboxError::plugin("x")), exit::INFRASTRUCTURE),
            (Failure::of_command(&SandboxError::not_found("x")), exit::FAILED),
        ];
        for (failure, exit) in cases {
            assert_eq!(failure.exit(), exit, "{failure:?}");
        }
    }

    #[test]
    fn json_always_has_the_five_keys() {
        let json = Failure::usage("x").to_json();
        let keys: Vec<_> = json["error"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["code", "field", "help", "message", "retryable"]);
    }
}
