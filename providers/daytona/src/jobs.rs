//! Commands that run on without a client: the same folders as of every command, that are kept.

use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::STANDARD};
use sandbox_core::{
    Admitted, ExecExit, ExecRequest, ExecStream, JobInfo, JobOffsets, Jobs, Result, SandboxError, SandboxHandle,
    StdinSource, async_trait,
};

use crate::{
    error::NAME,
    exec::Running,
    job::{Job, folder_name},
    labels::{now_ms, state},
    news::{Attempt, End, News, Told},
    provider::{DaytonaProvider, Shared},
    random::random_hex,
    toolbox::check,
};

/// What folders of jobs start with.
const KEPT: &str = "kept";

/// How long a start waits for what keeps watch.
const START: Duration = Duration::from_millis(100);

/// How long a request waits for the end of a job.
const LONG_WAIT: Duration = Duration::from_secs(15);

/// What is asked about when a request fails.
const A_JOB: &str = "a job";

/// Nothing of the output is asked for.
const NOTHING: JobOffsets = JobOffsets { stdout: i64::MAX as u64, stderr: i64::MAX as u64 };

/// A job as its folder tells of it.
struct Known {
    info: JobInfo,
    attempt: Attempt,
}

fn folder(job_id: &str) -> String {
    folder_name(KEPT, job_id)
}

fn job_id(folder: &str) -> Option<String> {
    let hex = folder.strip_prefix(KEPT)?.strip_prefix('-')?.strip_suffix('-')?;
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    String::from_utf8((0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?).ok()
}

/// What tells of each of these folders, a line for each. A job whose watch was ended with everything else, because the
/// sandbox was stopped, was killed.
fn tell(root: &str, folders: &str, mark: &str) -> String {
    format!(
        "for J in '{root}'/{folders}; do [ -s \"$J/at\" ] || continue\n\
         if [ ! -s \"$J/rc\" ] && [ -s \"$J/sup\" ] && ! grep -qs \"${{J##*/}}\" \"/proc/$(cat \"$J/sup\")/cmdline\"; then\n\
         [ -s \"$J/rc\" ] || {{ echo 'signalled 137 0' > \"$J/rc.t\"; mv \"$J/rc.t\" \"$J/rc\"; }}; fi\n\
         o=$(wc -c < \"$J/out\"); e=$(wc -c < \"$J/err\"); p=0; [ -s \"$J/pid\" ] && p=$(cat \"$J/pid\")\n\
         r=; [ -s \"$J/rc\" ] && r=$(cat \"$J/rc\")\n\
         echo \"{mark} ${{J##*/}} $(cat \"$J/at\") $p $((o)) $((e)) $r\"\ndone\necho '{mark} end'\n"
    )
}

/// One job of what was told.
fn told(line: &str) -> Option<Known> {
    let mut words = line.split_whitespace();
    let job_id = job_id(words.next()?)?;
    let started_at_ms = words.next()?.parse().ok()?;
    let attempt = serde_json::from_slice(&STANDARD.decode(words.next()?).ok()?).ok()?;
    let pid: u32 = words.next()?.parse().ok()?;
    let (stdout_bytes, stderr_bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let exit = End::read(&mut words)?.map(|end| end.exit(&attempt));
    let pid = Some(pid).filter(|pid| *pid > 0 && exit.is_none());
    Some(Known { info: JobInfo { job_id, started_at_ms, pid, exit, stdout_bytes, stderr_bytes }, attempt })
}

fn unknown(job_id: &str) -> SandboxError {
    SandboxError::not_found(format!("job {job_id:?}")).with_provider(NAME)
}

impl DaytonaProvider {
    fn root(&self) -> &str {
        &self.shared.config.operations.job_folder
    }

    /// The jobs in folders of these names, oldest first.
    async fn jobs_in(&self, handle: &SandboxHandle, folders: &str) -> Result<Vec<Known>> {
        let mark = format!("JOBS{}", random_hex(6)?);
        let output = self.shared.short_script(handle, A_JOB, &tell(self.root(), folders, &mark)).await?.output;
        let mut lines: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix(&mark)).collect();
        if lines.pop().map(str::trim) != Some("end") {
            return Err(
                SandboxError::lost("what the sandbox says of its jobs was cut", Admitted::No).with_provider(NAME)
            );
        }
        let mut all: Vec<Known> = lines.into_iter().filter_map(told).collect();
        all.sort_by_key(|known| known.info.started_at_ms);
        Ok(all)
    }

    async fn known_job(&self, handle: &SandboxHandle, job_id: &str) -> Result<Known> {
        let known = self.jobs_in(handle, &folder(job_id)).await?.pop();
        known.ok_or_else(|| unknown(job_id))
    }

    /// A job that is there, from these offsets on.
    async fn running(&self, handle: &SandboxHandle, job_id: &str, since: JobOffsets) -> Result<Running> {
        let known = self.known_job(handle, job_id).await?;
        let job = Job::known(folder(job_id), self.root());
        Ok(Running::new(&self.shared, handle, job, known.attempt).await?.kept(since))
    }
}

impl Shared {
    /// News of a job, as far as it is still there.
    async fn news(
        &self,
        handle: &SandboxHandle,
        running: &Running,
        before: &str,
        wait: Duration,
    ) -> Result<Option<News>> {
        match running.ask(before, wait).await {
            Ok(Told::News(news)) => Ok(Some(news)),
            Ok(_) => Ok(None),
            Err(failure) => Err(self.explain(handle, A_JOB, failure).await),
        }
    }
}

#[async_trait]
impl Jobs for DaytonaProvider {
    async fn start_job(&self, handle: &SandboxHandle, mut request: ExecRequest) -> Result<JobInfo> {
        request.validate()?;
        check(handle)?;
        if request.stdin != StdinSource::Null {
            return Err(SandboxError::invalid_input("stdin", "a job takes no input").with_provider(NAME));
        }
        if request.exec_id.is_empty() {
            request.exec_id = format!("job-{}", random_hex(12)?);
        }
        let workdir = state(handle).workdir;
        let attempt = Attempt::new(&request, workdir.as_deref());
        let about = serde_json::to_vec(&attempt).map_err(|_| SandboxError::internal("a job has no words"))?;
        // Its own clock: the sandbox's may not count parts of a second.
        let first = format!("echo '{} {}' > \"$J/at\"\n", now_ms(), STANDARD.encode(about));
        let job = Job::new(folder(&request.exec_id), self.root(), workdir.as_deref(), &request);
        let launch = job.launch(&[], &first);
        let running = Running::new(&self.shared, handle, job, attempt).await?.kept(NOTHING);
        running.upload().await?;
        self.shared.news(handle, &running, &launch, START).await?;
        Ok(self.known_job(handle, &request.exec_id).await?.info)
    }

    async fn list_jobs(&self, handle: &SandboxHandle) -> Result<Vec<JobInfo>> {
        let all = self.jobs_in(handle, &format!("{KEPT}-*")).await?;
        Ok(all.into_iter().map(|known| known.info).collect())
    }

    async fn attach_job(&self, handle: &SandboxHandle, job_id: String, since: JobOffsets) -> Result<ExecStream> {
        let running = self.running(handle, &job_id, since).await?;
        let first = self.shared.news(handle, &running, "", START).await?.ok_or_else(|| unknown(&job_id))?;
        Ok(running.follow(first))
    }

    async fn wait_job(
        &self,
        handle: &SandboxHandle,
        job_id: String,
        timeout_s: Option<f64>,
    ) -> Result<Option<ExecExit>> {
        let limit = match timeout_s {
            None => None,
            Some(seconds) => Some(Duration::try_from_secs_f64(seconds).map_err(|_| {
                SandboxError::invalid_input("timeout_s", "must be a number of seconds, 0 or more").with_provider(NAME)
            })?),
        };
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let running = self.running(handle, &job_id, NOTHING).await?;
        let mut unseen = 0;
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let wait = left.unwrap_or(LONG_WAIT).min(LONG_WAIT);
            let news = self.shared.news(handle, &running, "", wait).await?.ok_or_else(|| unknown(&job_id))?;
            if let Some(exit) = running.end_of(&news) {
                return Ok(Some(exit));
            }
            if left.is_some_and(|left| left <= wait) {
                return Ok(None);
            }
            unseen += u32::from(!news.is_up);
            if unseen > 2 {
                return Err(SandboxError::lost("the job never started", Admitted::Unknown).with_provider(NAME));
            }
        }
    }

    async fn signal_job(&self, handle: &SandboxHandle, job_id: String, signal: i32, tree: bool) -> Result<()> {
        if !(1..=64).contains(&signal) {
            let text = format!("{signal} is no signal; 1 to 64 are");
            return Err(SandboxError::invalid_input("signal", text).with_provider(NAME));
        }
        self.known_job(handle, &job_id).await?;
        let job = Job::known(folder(&job_id), self.root());
        let text = if tree { job.signal_tree(signal) } else { job.signal(signal) };
        match self.shared.short_script(handle, A_JOB, &text).await?.code {
            // It is over.
            0 | 3 => Ok(()),
            5 => Err(SandboxError::timed_out("something that the job left is still there after its kill")
                .with_provider(NAME)),
            code => Err(SandboxError::internal(format!("the signal was not sent: exit {code}")).with_provider(NAME)),
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::ExecOutcome;

    use super::{folder, job_id, told};

    #[test]
    fn every_id_is_a_name_of_a_folder_and_comes_back() {
        for id in ["j1", "a/../b", "ü '\"$x", ""] {
            let name = folder(id);
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{name}");
            assert_eq!(job_id(&name).as_deref(), Some(id));
        }
        assert_eq!((job_id("kept-6-"), job_id("id-6a-"), job_id("kept-zz-")), (None, None, None));
    }

    #[test]
    fn a_line_about_a_job_is_read_whole_or_not_at_all() {
        let line = " kept-6a31- 1700000000123 e30= 17 9 4";
        let running = told(line).unwrap().info;
        assert_eq!((running.job_id.as_str(), running.started_at_ms, running.pid), ("j1", 1_700_000_000_123, Some(17)));
        assert_eq!((running.stdout_bytes, running.stderr_bytes, running.exit), (9, 4, None));
        let over = told(&format!("{line} exited 7 0")).unwrap().info;
        assert_eq!((over.exit.unwrap().outcome, over.pid), (ExecOutcome::Exited(7), None));
        for cut in ["", " kept-6a31- 17", " kept-6a31- 1 e30= 17 9", " kept-6a31- 1 e30= 17 9 4 exited 7"] {
            assert!(told(cut).is_none(), "{cut}");
        }
    }
}
