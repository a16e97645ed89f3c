//! What is run in the sandbox of a service.

use sandbox_core::{Env, ExecCommand, ExecRequest, ImageConfig, ImageHealthcheck, Result, SandboxError};

use crate::compose::{ComposeHealthcheck, HealthTest, PlannedService};

/// What is run in the sandboxes of a service, with what its image says filled in.
#[derive(Clone)]
pub(super) struct Program {
    pub(super) argv: Vec<String>,
    pub(super) cwd: Option<String>,
    pub(super) user: Option<String>,
    pub(super) stop_signal: i32,
    pub(super) health: Option<Health>,
    /// Variables over those of the sandbox.
    pub(super) env: Env,
}

/// A health check with every default filled in.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) test: HealthTest,
    pub(super) interval_s: f64,
    pub(super) timeout_s: f64,
    pub(super) retries: u32,
    pub(super) start_period_s: f64,
    pub(super) start_interval_s: f64,
}

impl Program {
    pub(super) fn new(service: &PlannedService, image: &ImageConfig) -> Result<Self> {
        let entrypoint = service.entrypoint.clone().unwrap_or_else(|| image.entrypoint.clone());
        let command = service.command.clone().unwrap_or_else(|| {
            // A program of the document's own gets none of the image's arguments.
            if service.entrypoint.is_some() { Vec::new() } else { image.command.clone() }
        });
        let argv: Vec<String> = entrypoint.into_iter().chain(command).collect();
        if argv.is_empty() {
            let message =
                format!("service {:?} has nothing to run: neither it nor its image names a program", service.name);
            return Err(SandboxError::invalid_input(format!("services.{}.command", service.name), message));
        }
        let signal = service.stop_signal.as_ref().or(image.stop_signal.as_ref());
        Ok(Self {
            argv,
            cwd: service.spec.workdir.clone().or_else(|| image.workdir.clone().filter(|folder| !folder.is_empty())),
            user: service.spec.user.clone().or_else(|| image.user.clone().filter(|user| !user.is_empty())),
            stop_signal: match signal {
                Some(name) => signal_number(name).ok_or_else(|| {
                    let message = "must be the name or number of a signal, such as SIGTERM";
                    SandboxError::invalid_input(format!("services.{}.stop_signal", service.name), message)
                })?,
                None => SIGTERM,
            },
            health: Health::new(service.healthcheck.as_ref(), image.healthcheck.as_ref()),
            env: Env::default(),
        })
    }

    /// The request that runs it.
    pub(super) fn request(&self) -> ExecRequest {
        self.with_place(ExecRequest::argv(self.argv.iter().map(String::as_str)))
    }

    /// The request of one health check.
    pub(super) fn health_request(&self, health: &Health) -> Option<ExecRequest> {
        let request = match &health.test {
            HealthTest::None => return None,
            HealthTest::Command(argv) => ExecRequest::argv(argv.iter().map(String::as_str)),
            HealthTest::Shell(script) => {
                let mut request = ExecRequest::shell(script.as_str());
                request.command =
                    ExecCommand::Shell { script: script.as_str().into(), shell: Some("/bin/sh".to_owned()) };
                request
            }
        };
        Some(self.with_place(request).with_timeout_s(health.timeout_s))
    }

    fn with_place(&self, mut request: ExecRequest) -> ExecRequest {
        request.cwd = self.cwd.as_deref().map(Into::into);
        request.user.clone_from(&self.user);
        request.env = self.env.clone();
        request
    }
}

impl Health {
    /// The document's check over the image's; none where there is no check.
    fn new(own: Option<&ComposeHealthcheck>, image: Option<&ImageHealthcheck>) -> Option<Self> {
        let image_test = image.and_then(|image| match image.test.split_first()? {
            (kind, rest) if kind == "CMD" && !rest.is_empty() => Some(HealthTest::Command(rest.to_vec())),
            (kind, [script]) if kind == "CMD-SHELL" => Some(HealthTest::Shell(script.clone())),
            _ => None,
        });
        let test = own.and_then(|own| own.test.clone()).or(image_test)?;
        if test == HealthTest::None {
            return None;
        }
        let seconds = |own: Option<std::time::Duration>, image: Option<f64>, default: f64| {
            // 0 is how an image says that it does not say.
            own.map(|own| own.as_secs_f64()).or(image).filter(|seconds| *seconds > 0.0).unwrap_or(default)
        };
        let own_or = |pick: fn(&ComposeHealthcheck) -> Option<std::time::Duration>| own.and_then(pick);
        Some(Self {
            test,
            interval_s: seconds(own_or(|own| own.interval), image.and_then(|image| image.interval_s), 30.0),
            timeout_s: seconds(own_or(|own| own.timeout), image.and_then(|image| image.timeout_s), 30.0),
            retries: own
                .and_then(|own| own.retries)
                .or(image.and_then(|image| image.retries).filter(|retries| *retries > 0))
                .unwrap_or(3),
            start_period_s: seconds(own_or(|own| own.start_period), image.and_then(|image| image.start_period_s), 0.0),
            start_interval_s: seconds(
                own_or(|own| own.start_interval),
                image.and_then(|image| image.start_interval_s),
                5.0,
            ),
        })
    }
}

const SIGTERM: i32 = 15;

/// The number of a signal by its name or number, on Linux.
fn signal_number(name: &str) -> Option<i32> {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    if let Ok(number) = name.parse::<i32>() {
        return Some(number).filter(|number| (1..=64).contains(number));
    }
    let name = name.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    if let Some(offset) = name.strip_prefix("RTMIN") {
        let offset: i32 = if offset.is_empty() { 0 } else { offset.strip_prefix('+')?.parse().ok()? };
        return Some(34 + offset).filter(|number| *number <= 64);
    }
    NAMES.iter().position(|known| *known == name).map(|index| index as i32 + 1)
}

#[cfg(test)]
mod tests {
    use super::signal_number;

    #[test]
    fn signals_have_names_and_numbers() {
        let cases = [("SIGTERM", 15), ("term", 15), ("SIGINT", 2), ("9", 9), ("SIGQUIT", 3), ("SIGRTMIN+3", 37)];
        for (name, number) in cases {
            assert_eq!(signal_number(name), Some(number), "{name}");
        }
        for bad in ["", "SIGX", "0", "65", "SIGRTMIN+40"] {
            assert_eq!(signal_number(bad), None, "{bad}");
        }
    }
}
