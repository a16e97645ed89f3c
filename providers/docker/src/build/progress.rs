//! What an engine says while it builds, as a log, and what of it is kept for the end.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    fmt,
};

use bollard::{errors::Error, models::BuildInfo};
use bytes::Bytes;
use sandbox_core::{ErrorKind, SandboxError};

use crate::{
    error::{self, NAME},
    image::{self, Reference},
};

/// How much of a step's output goes along with its failure.
const TAIL_MAX_BYTES: usize = 2048;

/// The longest text of the engine in an error.
const TEXT_MAX_CHARS: usize = 300;

/// How engines say that the container of a step is gone.
const REMOVED: [&str; 2] = ["Removing intermediate container ", " ---> Removed intermediate container "];

/// A step of the build file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Step {
    /// `2/5`.
    number: String,
    /// `RUN`, `COPY`, ….
    instruction: String,
    /// What stands behind it, as far as it is needed: the image of a `FROM`.
    base: String,
}

/// What was said so far.
#[derive(Default)]
pub(super) struct Progress {
    step: Option<Step>,
    /// The image at the end of the last stage.
    built: Option<String>,
    /// The short ids of images that steps of this build have made, the first one first.
    pub(super) made: Vec<String>,
    /// Containers in which steps ran and of which the engine has not said that they are gone.
    pub(super) containers: BTreeSet<String>,
    /// Whether the next image was there before.
    is_cached: bool,
    tail: VecDeque<u8>,
    /// What was last said of each layer of a pull.
    layers: HashMap<String, String>,
}

impl Progress {
    /// Takes what was said; gives what of it belongs into the log.
    pub(super) fn push(&mut self, said: BuildInfo) -> Option<Bytes> {
        if let Some(id) = said.aux.and_then(|aux| aux.id) {
            self.built = Some(id);
        }
        if let Some(text) = said.stream {
            self.line(&text);
            return Some(text.into()).filter(|bytes: &Bytes| !bytes.is_empty());
        }
        let status = said.status?;
        let line = match said.id {
            // The bars of a pull are for a screen: what changes is told once.
            Some(id) if self.layers.insert(id.clone(), status.clone()).as_ref() == Some(&status) => return None,
            Some(id) => format!("{id}: {status}\n"),
            None => format!("{status}\n"),
        };
        Some(line.into())
    }

    fn line(&mut self, text: &str) {
        let line = text.trim_end();
        if let Some(step) = step(line) {
            self.step = Some(step);
            self.is_cached = false;
            self.tail.clear();
        } else if let Some(id) = id_behind(line, &[" ---> Running in "]) {
            self.containers.insert(id.to_owned());
        } else if let Some(id) = id_behind(line, &REMOVED) {
            self.containers.remove(id);
        } else if line == " ---> Using cache" {
            self.is_cached = true;
        } else if let Some(id) = id_behind(line, &[" ---> "]) {
            let is_base = self.step.as_ref().is_some_and(|step| step.instruction == "FROM");
            if !self.is_cached && !is_base && !self.made.iter().any(|made| made == id) {
                self.made.push(id.to_owned());
            }
        } else {
            self.tail.extend(text.as_bytes());
            let surplus = self.tail.len().saturating_sub(TAIL_MAX_BYTES);
            self.tail.drain(..surplus);
        }
    }

    /// The id of the image, at the end of a build.
    pub(super) fn image(&self) -> Option<&str> {
        self.built.as_deref()
    }

    /// What a build failed with. What a step runs is in no error; what it wrote goes along as the cause.
    pub(super) fn failure(&mut self, error: Error, has_credentials: bool) -> SandboxError {
        let text = match &error {
            Error::DockerStreamError { error } => error.clone(),
            Error::DockerResponseServerError { status_code: 400 | 404 | 500, message } => message.clone(),
            _ => return error::engine("building the image", error),
        };
        let Some(step) = &self.step else { return refused(&text) };
        if step.instruction == "FROM"
            && let Ok(reference) = Reference::parse(&step.base)
        {
            let refused = image::refused(&reference, has_credentials, error);
            return refused.context(format!("step {} of the build (FROM)", step.number)).with_field("dockerfile");
        }
        if text.to_ascii_lowercase().contains("requires buildkit") {
            let message = format!("step {} of the build ({}) needs BuildKit", step.number, step.instruction);
            return SandboxError::invalid_input("dockerfile", message)
                .with_provider(NAME)
                .with_help("the engine's classic builder does not know this: leave it out");
        }
        let code = text.rsplit_once("returned a non-zero code: ").map(|(_, code)| code.trim());
        let why = match code {
            Some(code) => format!("ended with code {code}"),
            // The engine repeats what was to run.
            None if step.instruction == "RUN" => "could not be run".to_owned(),
            None => format!("failed: {}", short(&text)),
        };
        let exhausted = text.contains("no space left on device").then_some(ErrorKind::Exhausted);
        let kind = exhausted.unwrap_or(ErrorKind::Create);
        let message = format!("step {} of the build ({}) {why}", step.number, step.instruction);
        let output = Output::of(std::mem::take(&mut self.tail).make_contiguous());
        let failure = SandboxError::new(kind, message).with_provider(NAME).with_field("dockerfile");
        if output.0.is_empty() { failure } else { failure.with_source(output) }
    }
}

/// What the engine refuses before the first step: the build file itself.
fn refused(text: &str) -> SandboxError {
    let lower = text.to_ascii_lowercase();
    let field = if lower.contains("build target") { "target" } else { "dockerfile" };
    let error = SandboxError::invalid_input(field, short(text)).with_provider(NAME);
    match lower.contains("buildkit") || lower.contains("unknown flag") {
        true => error.with_help("the engine's classic builder does not know this: leave it out"),
        false => error,
    }
}

fn short(text: &str) -> String {
    let line = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(": ");
    line.trim_end_matches('.').chars().take(TEXT_MAX_CHARS).collect()
}

/// The id behind one of these beginnings.
fn id_behind<'a>(line: &'a str, beginnings: &[&str]) -> Option<&'a str> {
    let id = beginnings.iter().find_map(|beginning| line.strip_prefix(beginning))?;
    (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// Reads `Step 2/5 : RUN make`, or `STEP 2/5: RUN make`.
fn step(line: &str) -> Option<Step> {
    let rest = line.strip_prefix("Step ").or_else(|| line.strip_prefix("STEP "))?;
    let (number, rest) = rest.split_once(':')?;
    let (index, count) = number.trim().split_once('/')?;
    if ![index, count].iter().all(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    let mut words = rest.split_whitespace();
    let instruction = words.next()?.to_ascii_uppercase();
    let base = match instruction == "FROM" {
        true => words.find(|word| !word.starts_with("--")).unwrap_or_default().to_owned(),
        false => String::new(),
    };
    Some(Step { number: number.trim().to_owned(), instruction, base })
}

/// The last lines of a step's output.
#[derive(Debug)]
struct Output(String);

impl Output {
    fn of(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        Self(text.trim().trim_start_matches(char::REPLACEMENT_CHARACTER).to_owned())
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its output ended with:\n{}", self.0)
    }
}

impl std::error::Error for Output {}

#[cfg(test)]
mod tests {
    use bollard::{
        errors::Error,
        models::{BuildInfo, ImageId},
    };
    use sandbox_core::ErrorKind;

    use super::{Progress, Step, step};

    fn said(text: &str) -> BuildInfo {
        BuildInfo { stream: Some(text.to_owned()), ..BuildInfo::default() }
    }

    fn after(lines: &[&str]) -> Progress {
        let mut progress = Progress::default();
        for line in lines {
            assert_eq!(progress.push(said(line)).unwrap(), *line);
        }
        progress
    }

    fn stream(error: &str) -> Error {
        Error::DockerStreamError { error: error.to_owned() }
    }

    #[test]
    fn a_step_that_fails_is_told_with_its_output_and_without_what_it_runs() {
        let mut progress = after(&[
            "Step 1/3 : FROM base\n",
            " ---> 0123456789ab\n",
            "Step 2/3 : COPY a /\n",
            " ---> 111111111111\n",
            "Step 3/3 : RUN make canary\n",
            " ---> Running in 222222222222\n",
            "compiling\n",
            "no rule\n",
        ]);
        assert_eq!(progress.containers.iter().collect::<Vec<_>>(), ["222222222222"]);
        progress.push(said("Removing intermediate container 222222222222\n"));
        assert!(progress.containers.is_empty());
        let error = progress.failure(stream("The command '/bin/sh -c make canary' returned a non-zero code: 2"), false);
        assert_eq!((error.kind(), error.field()), (ErrorKind::Create, Some("dockerfile")));
        assert_eq!(error.message(), "step 3/3 of the build (RUN) ended with code 2");
        assert_eq!(error.chain(), ["its output ended with:\ncompiling\nno rule"]);
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        assert_eq!(progress.made, ["111111111111"]);
    }

    #[test]
    fn only_images_that_this_build_made_are_its_own() {
        let progress = after(&[
            "Step 1/4 : FROM base\n",
            " ---> 0123456789ab\n",
            "Step 2/4 : RUN a\n",
            " ---> Using cache\n",
            " ---> aaaaaaaaaaaa\n",
            " ---> [Warning] something\n",
            "Step 3/4 : RUN b\n",
            " ---> Running in cccccccccccc\n",
            " ---> bbbbbbbbbbbb\n",
            "Step 4/4 : FROM bbbbbbbbbbbb\n",
            " ---> bbbbbbbbbbbb\n",
        ]);
        assert_eq!(progress.made, ["bbbbbbbbbbbb"]);
    }

    #[test]
    fn the_image_is_that_of_the_last_stage() {
        let mut progress = Progress::default();
        for id in ["sha256:a", "sha256:b"] {
            let aux = Some(ImageId { id: Some(id.to_owned()) });
            assert_eq!(progress.push(BuildInfo { aux, ..BuildInfo::default() }), None);
        }
        assert_eq!(progress.image(), Some("sha256:b"));
    }

    #[test]
    fn pulls_are_told_without_their_bars() {
        let mut progress = Progress::default();
        let mut told = |id: Option<&str>, status: &str| {
            let (id, status) = (id.map(str::to_owned), Some(status.to_owned()));
            progress.push(BuildInfo { id, status, ..BuildInfo::default() })
        };
        assert_eq!(told(Some("x"), "Downloading").unwrap(), "x: Downloading\n");
        assert_eq!(told(Some("x"), "Downloading"), None);
        assert_eq!(told(Some("x"), "Pull complete").unwrap(), "x: Pull complete\n");
        assert_eq!(told(None, "Status: done").unwrap(), "Status: done\n");
    }

    #[test]
    fn what_is_wrong_with_a_base_or_the_file_has_its_kind() {
        let from = ["Step 1/1 : FROM --platform=linux/amd64 r.example/x:1 AS y\n"];
        let error = after(&from).failure(stream("manifest for r.example/x:1 not found: manifest unknown"), false);
        assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("dockerfile")), "{error:?}");
        let mut copy = after(&["Step 2/2 : COPY gone /\n"]);
        let error = copy.failure(stream("COPY failed: stat gone: file does not exist"), false);
        assert_eq!(error.message(), "step 2/2 of the build (COPY) failed: COPY failed: stat gone: file does not exist");
        let full = after(&["Step 1/1 : ADD x /\n"]).failure(stream("write /x: no space left on device"), false);
        assert_eq!(full.kind(), ErrorKind::Exhausted);
        for (text, field) in [
            ("dockerfile parse error line 1: unknown instruction: FRM", "dockerfile"),
            ("failed to reach build target x in Dockerfile", "target"),
        ] {
            let answer = Error::DockerResponseServerError { status_code: 400, message: text.to_owned() };
            let error = Progress::default().failure(answer, false);
            assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some(field)), "{error:?}");
        }
    }

    #[test]
    fn steps_are_read_as_engines_write_them() {
        let run = Step { number: "2/5".to_owned(), instruction: "RUN".to_owned(), base: String::new() };
        assert_eq!(step("Step 2/5 : RUN make"), Some(run.clone()));
        assert_eq!(step("STEP 2/5: run make"), Some(run));
        assert_eq!(step("Step by step: go"), None);
    }
}
