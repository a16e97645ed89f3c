//! What a run found.

use std::fmt;

use serde::Serialize;

/// The version of the JSON form.
pub const SCHEMA: &str = "v1";

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CaseStatus {
    /// The provider behaves as the contract says.
    Passed,
    /// It does not.
    Failed,
    /// Something that the case needs is not declared. Not passed.
    Skipped,
}

/// One case of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CaseReport {
    /// `group.a_sentence_that_can_be_false`.
    pub name: String,
    /// How it ended.
    pub status: CaseStatus,
    /// Why it failed or was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it failed at first, when it had to run again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flaky: Option<String>,
    /// How long it took, in seconds, its clean-up included.
    pub duration_s: f64,
    /// The bullet of the contract, or the failure case, that it proves.
    pub proves: String,
}

impl CaseReport {
    /// The report of a case that failed and has run again: the last one, with why it failed first.
    pub(crate) fn and_then(self, again: Self) -> Self {
        Self { flaky: self.flaky.or(self.reason), ..again }
    }
}

/// A whole run. `Display` is the text form; its last line is exactly `N passed, N failed, N skipped`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of this form: [`SCHEMA`].
    pub schema: &'static str,
    /// The provider's name.
    pub provider: String,
    /// Its isolation, in its own word.
    pub isolation: String,
    /// How many cases had to run (pass or fail) for the run to count.
    pub minimum_run: usize,
    /// Every case, in the order of the suite.
    pub cases: Vec<CaseReport>,
}

impl Report {
    /// How many cases ended so.
    pub fn count(&self, status: CaseStatus) -> usize {
        self.cases.iter().filter(|case| case.status == status).count()
    }

    /// A case by its name.
    pub fn case(&self, name: &str) -> Option<&CaseReport> {
        self.cases.iter().find(|case| case.name == name)
    }

    /// True if no case failed and as many ran as had to. Skipped is not run.
    pub fn is_conformant(&self) -> bool {
        self.count(CaseStatus::Failed) == 0 && self.shortfall() == 0
    }

    /// How many cases too few have run.
    pub fn shortfall(&self) -> usize {
        self.minimum_run.saturating_sub(self.cases.len() - self.count(CaseStatus::Skipped))
    }

    /// The JSON form.
    ///
    /// # Panics
    /// Never: a report is numbers and texts.
    pub fn to_json(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).expect("a report is numbers and texts");
        value["passed"] = self.count(CaseStatus::Passed).into();
        value["failed"] = self.count(CaseStatus::Failed).into();
        value["skipped"] = self.count(CaseStatus::Skipped).into();
        value["conformant"] = self.is_conformant().into();
        value
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "provider {} (isolation {})", self.provider, self.isolation)?;
        let mut group = "";
        for case in &self.cases {
            let case_group = case.name.split('.').next().unwrap_or_default();
            if case_group != group {
                group = case_group;
                writeln!(f, "{group}")?;
            }
            let mark = match case.status {
                CaseStatus::Passed => "ok",
                CaseStatus::Failed => "FAIL",
                CaseStatus::Skipped => "skip",
            };
            write!(f, " {mark:<4} {}", case.name)?;
            if let Some(reason) = &case.reason {
                write!(f, ": {}", reason.replace('\n', " "))?;
            }
            match &case.flaky {
                Some(failure) => writeln!(f, " (flaky; failed at first: {})", failure.replace('\n', " "))?,
                None => writeln!(f)?,
            }
        }
        if self.shortfall() > 0 {
            writeln!(f, "too few cases ran: at least {} must, {} did not", self.minimum_run, self.shortfall())?;
        }
        writeln!(
            f,
            "{} passed, {} failed, {} skipped",
            self.count(CaseStatus::Passed),
            self.count(CaseStatus::Failed),
            self.count(CaseStatus::Skipped)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{CaseReport, CaseStatus, Report, SCHEMA};

    fn report(statuses: &[CaseStatus], minimum_run: usize) -> Report {
        let case = |status: &CaseStatus| CaseReport {
            name: "a.b".to_owned(),
            status: *status,
            reason: (*status != CaseStatus::Passed).then(|| "why\nso".to_owned()),
            flaky: None,
            duration_s: 0.5,
            proves: "A01".to_owned(),
        };
        Report {
            schema: SCHEMA,
            provider: "p".to_owned(),
            isolation: "none".to_owned(),
            minimum_run,
            cases: statuses.iter().map(case).collect(),
        }
    }

    #[test]
    fn skipped_is_not_passed() {
        use CaseStatus::{Failed, Passed, Skipped};
        assert!(report(&[Passed, Skipped], 1).is_conformant());
        assert!(!report(&[Passed, Skipped], 2).is_conformant());
        assert!(!report(&[Passed, Failed], 1).is_conformant());
        assert!(!report(&[], 1).is_conformant());
    }

    #[test]
    fn the_text_has_a_line_for_each_case_and_the_counts_last() {
        use CaseStatus::{Failed, Passed, Skipped};
        let text = report(&[Passed, Failed, Skipped], 3).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], " ok   a.b");
        assert_eq!(lines[3], " FAIL a.b: why so");
        assert_eq!(lines[4], " skip a.b: why so");
        assert_eq!(lines.last(), Some(&"1 passed, 1 failed, 1 skipped"));
    }

    #[test]
    fn the_json_names_its_version() {
        let json = report(&[CaseStatus::Passed], 1).to_json();
        assert_eq!((json["schema"].as_str(), json["passed"].as_u64()), (Some("v1"), Some(1)));
        assert_eq!(json["cases"][0]["status"], "passed");
    }

    #[test]
    fn a_case_that_ran_again_keeps_its_first_failure() {
        let report = report(&[CaseStatus::Failed, CaseStatus::Failed, CaseStatus::Passed], 1);
        let mut cases = report.cases.into_iter();
        let (mut first, again, passed) = (cases.next().unwrap(), cases.next().unwrap(), cases.next().unwrap());
        first.reason = Some("late".to_owned());
        let failed = first.and_then(again);
        assert_eq!((failed.status, failed.flaky.as_deref()), (CaseStatus::Failed, Some("late")));
        let passed = failed.and_then(passed);
        assert_eq!((passed.status, passed.flaky.as_deref()), (CaseStatus::Passed, Some("late")));
        assert_eq!(passed.reason, None);
        let text = Report { cases: vec![passed], ..self::report(&[], 1) }.to_string();
        assert!(text.contains(" ok   a.b (flaky; failed at first: late)\n"), "{text}");
        assert!(text.ends_with("1 passed, 0 failed, 0 skipped\n"), "{text}");
    }
}
