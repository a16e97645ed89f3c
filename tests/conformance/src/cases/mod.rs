//! The cases, one file a subject. A case's name starts with its group.

use crate::case::Case;

mod background;
mod cancel;
mod concurrency;
mod cwd;
mod declared;
mod directories;
mod download;
mod env;
mod fields;
mod files;
mod hygiene;
mod images;
mod input;
mod jobs;
mod lifecycle;
mod limits;
mod network;
mod outcome;
mod output;
mod ownership;
mod pty;
mod pty_attach;
mod services;
mod shell;
mod start;
mod timeout;
mod upload;
mod user;

/// Every case, in the order of the report.
pub(crate) fn all() -> Vec<Case> {
    [
        outcome::cases(),
        start::cases(),
        shell::cases(),
        input::cases(),
        output::cases(),
        limits::cases(),
        env::cases(),
        cwd::cases(),
        user::cases(),
        timeout::cases(),
        cancel::cases(),
        background::cases(),
        concurrency::cases(),
        upload::cases(),
        download::cases(),
        lifecycle::cases(),
        ownership::cases(),
        services::cases(),
        network::cases(),
        files::cases(),
        directories::cases(),
        pty::cases(),
        pty_attach::cases(),
        jobs::cases(),
        images::cases(),
        hygiene::cases(),
        fields::cases(),
        declared::cases(),
    ]
    .concat()
}

/// Makes a list of cases out of functions of the same names: `group.name` is the name of `name`.
macro_rules! cases {
    ($group:literal: $($name:ident, $proves:literal $(, field $field:ident)* $(, capability $capability:ident)*;)+) => {
        pub(super) fn cases() -> Vec<$crate::case::Case> {
            vec![$(
                $crate::case::Case::new(concat!($group, ".", stringify!($name)), $proves, $name)
                    $(.needs_field(sandbox_core::Field::$field))*
                    $(.needs(sandbox_core::Capability::$capability))*
            ),+]
        }
    };
}
use cases;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_case_says_what_it_proves() {
        let all = super::all();
        let names: BTreeSet<_> = all.iter().map(|case| case.name.clone()).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|case| !case.proves.is_empty()));
        assert!(all.len() >= 70, "{}", all.len());
    }
}
