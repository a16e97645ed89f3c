//! Who a sandbox is for.

use std::{
    collections::BTreeMap,
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    os::unix::fs::MetadataExt,
    sync::OnceLock,
};

use crate::environment::{self, Environment};

/// What a caller says of itself; it beats the environment. Blank counts as not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// Who pays.
    pub team: Option<String>,
    /// Who runs it.
    pub user: Option<String>,
    /// What runs.
    pub workload: Option<String>,
}

/// The labels `team`, `user` and `workload`, as far as they can be found out. Values are raw: providers bring them into
/// their own form.
///
/// | label | sources, the first one that is not blank |
/// |---|---|
/// | `team` | argument, `SANDBOX_TEAM`, `NEMO_GYM_TEAM`, `SLURM_JOB_ACCOUNT` |
/// | `user` | argument, `SANDBOX_USER`, `NEMO_GYM_USER`, `SLURM_JOB_USER`, the login of this process unless it is root |
/// | `workload` | argument, `SANDBOX_WORKLOAD`, `NEMO_GYM_WORKLOAD`, `SLURM_JOB_NAME`, `SANDBOX_CONFIG_PATH`, `NEMO_GYM_CONFIG_PATH` |
pub fn resolve_attribution(attribution: &Attribution, environment: &Environment) -> BTreeMap<String, String> {
    let found = |argument: &Option<String>, names: &[&str]| {
        let argument = argument.as_deref().map(str::trim).filter(|argument| !argument.is_empty());
        argument.or_else(|| environment.first(names)).map(str::to_owned)
    };
    let labels = [
        ("team", found(&attribution.team, environment::TEAM)),
        ("user", found(&attribution.user, environment::USER).or_else(|| login().map(str::to_owned))),
        ("workload", found(&attribution.workload, environment::WORKLOAD)),
    ];
    labels.into_iter().filter_map(|(label, value)| Some((label.to_owned(), value?))).collect()
}

/// The id of the run: the argument, `SANDBOX_RUN_ID`, `NEMO_GYM_RUN_ID`, else 12 hexadecimal digits that are made up
/// once per process. Blank counts as absent.
pub fn resolve_run_id(run: Option<&str>, environment: &Environment) -> String {
    static GENERATED: OnceLock<String> = OnceLock::new();
    let run = run.map(str::trim).filter(|run| !run.is_empty());
    match run.or_else(|| environment.first(environment::RUN_ID)) {
        Some(run) => run.to_owned(),
        None => GENERATED.get_or_init(random_hex).clone(),
    }
}

/// Tells once per process, at level info, which labels its sandboxes carry. Labels without a value are skipped, and
/// values are not told.
pub fn log_attribution_once(metadata: &BTreeMap<String, String>) {
    static LOGGED: OnceLock<()> = OnceLock::new();
    if !metadata.is_empty() && LOGGED.set(()).is_ok() {
        let keys: Vec<&str> = metadata.keys().map(String::as_str).collect();
        tracing::info!(labels = keys.join(","), "sandboxes of this process carry attribution");
    }
}

/// 48 random bits. The keys of the standard library's hasher come from the operating system's random numbers; that
/// saves a dependency, and a run id is no secret.
fn random_hex() -> String {
    format!("{:012x}", RandomState::new().build_hasher().finish() & 0xffff_ffff_ffff)
}

/// The login of this process, whatever `Environment` a caller passes. Root is nobody in particular.
fn login() -> Option<&'static str> {
    static LOGIN: OnceLock<Option<String>> = OnceLock::new();
    let found = LOGIN.get_or_init(|| {
        let named = Environment::process().first(environment::LOGIN).map(str::to_owned);
        named.or_else(login_of_uid).filter(|login| !login.eq_ignore_ascii_case("root"))
    });
    found.as_deref()
}

/// The name of this process's user in `/etc/passwd`.
fn login_of_uid() -> Option<String> {
    let uid = fs::metadata("/proc/self").ok()?.uid().to_string();
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::{Attribution, resolve_attribution, resolve_run_id};
    use crate::Environment;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        variables.iter().copied().collect()
    }

    #[test]
    fn the_first_source_that_is_not_blank_wins_for_every_label() {
        let orders: [(&str, &[&str]); 3] = [
            ("team", &["SANDBOX_TEAM", "NEMO_GYM_TEAM", "SLURM_JOB_ACCOUNT"]),
            ("user", &["SANDBOX_USER", "NEMO_GYM_USER", "SLURM_JOB_USER"]),
            (
                "workload",
                &[
                    "SANDBOX_WORKLOAD",
                    "NEMO_GYM_WORKLOAD",
                    "SLURM_JOB_NAME",
                    "SANDBOX_CONFIG_PATH",
                    "NEMO_GYM_CONFIG_PATH",
                ],
            ),
        ];
        for (label, names) in orders {
            for first in 0..names.len() {
                let mut variables: Vec<_> = names[first..].iter().map(|name| (*name, *name)).collect();
                // Blank ones before it count as unset.
                variables.extend(names[..first].iter().map(|name| (*name, "  ")));
                let labels = resolve_attribution(&Attribution::default(), &environment(&variables));
                assert_eq!(labels.get(label).map(String::as_str), Some(names[first]));
            }
        }
    }

    #[test]
    fn an_argument_beats_the_environment_unless_it_is_blank() {
        let environment = environment(&[("SANDBOX_TEAM", " red "), ("SANDBOX_USER", "root")]);
        let said = |team: &str| Attribution { team: Some(team.into()), ..Attribution::default() };
        assert_eq!(resolve_attribution(&said("blue"), &environment)["team"], "blue");
        assert_eq!(resolve_attribution(&said("  "), &environment)["team"], "red");
        // Only the login drops root.
        assert_eq!(resolve_attribution(&said("x"), &environment)["user"], "root");
        assert!(!resolve_attribution(&said("x"), &environment).contains_key("workload"));
    }

    #[test]
    fn a_run_id_is_the_argument_the_environment_or_stable_for_the_process() {
        let both = environment(&[("SANDBOX_RUN_ID", " mine "), ("NEMO_GYM_RUN_ID", "theirs")]);
        assert_eq!(resolve_run_id(Some("arg"), &both), "arg");
        assert_eq!(resolve_run_id(Some(" "), &both), "mine");
        assert_eq!(resolve_run_id(None, &environment(&[("NEMO_GYM_RUN_ID", "theirs")])), "theirs");
        let generated = resolve_run_id(None, &environment(&[("SANDBOX_RUN_ID", "")]));
        assert!(generated.len() == 12 && generated.bytes().all(|digit| digit.is_ascii_hexdigit()), "{generated}");
        assert_eq!(resolve_run_id(None, &environment(&[])), generated);
    }
}
