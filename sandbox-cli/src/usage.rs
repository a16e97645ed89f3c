//! Wrong command lines, with the right one where it can be guessed.

use std::ffi::{OsStr, OsString};

use clap::{CommandFactory, Parser, ValueEnum, error::ErrorKind};
use sandbox_core::near_match;

use crate::{
    cli::{Cli, Command},
    environment, exit,
    failure::Failure,
    output,
    output::Format,
};

/// Tells what clap has found, help and version among it. Gives the exit code.
pub(crate) fn report(error: &clap::Error, arguments: &[OsString]) -> u8 {
    if let ErrorKind::DisplayHelp | ErrorKind::DisplayVersion = error.kind() {
        return match error.print() {
            Ok(()) => 0,
            Err(error) => output::write_failure(&error).exit(),
        };
    }
    let format = asked_format(arguments);
    if let Some(words) = misplaced_command(arguments) {
        missing_separator(words, arguments).report(format, false);
        return exit::USAGE;
    }
    let help = arguments.get(1).filter(|_| misses_separator(arguments)).map(|_| SEPARATOR_HELP);
    if format.is_json() {
        let mut failure = Failure::usage(first_paragraph(error));
        if let Some(help) = help {
            failure = failure.with_help(help);
        }
        failure.report(format, false);
    } else {
        let _ = error.print();
        if let Some(help) = help {
            output::note(&format!("help: {help}"));
        }
    }
    exit::USAGE
}

const SEPARATOR_HELP: &str = "the command stands behind \"--\": sandboxctl run [OPTIONS] [IMAGE] -- CMD [ARGS]";

/// clap's text without the word `error:`, the usage and the hint, on one line.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

fn misses_separator(arguments: &[OsString]) -> bool {
    arguments.iter().any(|argument| argument == "run") && !arguments.iter().any(|argument| argument == "--")
}

/// The words of a `run` without `--`, from the first one that is no option on. Found by reading ever more of the line.
fn misplaced_command(arguments: &[OsString]) -> Option<&[OsString]> {
    if !misses_separator(arguments) {
        return None;
    }
    let has_word = |end: &usize| {
        let read = Cli::try_parse_from(&arguments[..*end]);
        matches!(read, Ok(Cli { command: Command::Run(run), .. }) if run.has_words())
    };
    let end = (1..arguments.len()).find(has_word)?;
    Some(&arguments[end - 1..])
}

/// The format that the command line asks for, as far as that can be seen without understanding it.
fn asked_format(arguments: &[OsString]) -> Format {
    let before_command = arguments.iter().take_while(|argument| *argument != "--");
    let texts: Vec<&str> = before_command.filter_map(|argument| argument.to_str()).collect();
    let asked = texts.iter().enumerate().find_map(|(index, text)| match *text {
        "-o" | "--output" => texts.get(index + 1).copied(),
        text => text.strip_prefix("--output=").or_else(|| text.strip_prefix("-o")),
    });
    let asked = asked.map(str::to_owned).or_else(|| environment::text("SANDBOX_OUTPUT"));
    asked.and_then(|text| Format::from_str(text.trim_start_matches('='), false).ok()).unwrap_or_default()
}

/// Reads `SANDBOX_OUTPUT`.
///
/// # Errors
/// Usage, with the forms and the nearest of them.
pub(crate) fn format(text: &str) -> Result<Format, Failure> {
    Format::from_str(text, false).map_err(|_| {
        let names: Vec<String> = Format::value_variants()
            .iter()
            .filter_map(ValueEnum::to_possible_value)
            .map(|value| value.get_name().to_owned())
            .collect();
        let failure = Failure::usage(format!("SANDBOX_OUTPUT: {text:?} is none of {}", names.join(", ")))
            .with_field("SANDBOX_OUTPUT");
        match near_match(text, names.iter().map(String::as_str)) {
            Some(near) => failure.with_help(format!("did you mean {near:?}?")),
            None => failure,
        }
    })
}

/// The refusal of a `run` whose command does not stand behind `--`. `words` are the image and the command as
/// given, `arguments` the whole line.
pub(crate) fn missing_separator(words: &[OsString], arguments: &[OsString]) -> Failure {
    let arguments = arguments.get(1..).unwrap_or_default();
    // An image has to be told from a program: programs are in PATH.
    let is_program = words.first().and_then(|word| word.to_str()).is_some_and(environment::has_program);
    let command_at = usize::from(!is_program && words.len() > 1);
    let corrected = match arguments.len().checked_sub(words.len()) {
        Some(start) if arguments[start..] == *words => {
            let shown = |words: &[OsString]| words.iter().map(|word| format!(" {}", quote(word))).collect::<String>();
            let (head, command) = arguments.split_at(start + command_at);
            format!("sandboxctl{} --{}", shown(&without_values(head)), shown(command))
        }
        _ => SEPARATOR_HELP.to_owned(),
    };
    let message = if words.is_empty() {
        "there is no command to run"
    } else if words.len() == 1 && !is_program {
        "there is an image but no command to run"
    } else {
        "the command does not stand behind \"--\""
    };
    let help = match (words, is_program) {
        ([], _) => "sandboxctl run -- echo hello".to_owned(),
        ([image], false) => format!("sandboxctl run {} -- CMD [ARGS]", quote(image)),
        _ => corrected,
    };
    Failure::usage(message).with_field("CMD").with_help(help)
}

/// The same options, with `***` for the values of variables and settings: they may be secrets.
fn without_values(options: &[OsString]) -> Vec<OsString> {
    let mut follows = false;
    let hide = |option: &OsString| {
        let text = option.to_string_lossy();
        let pair_at = match ["-e", "--env=", "--set="].into_iter().find(|name| text.starts_with(name)) {
            _ if follows => Some(0),
            found => found.map(str::len),
        };
        follows = matches!(&*text, "-e" | "--env" | "--set");
        match pair_at.and_then(|pair_at| Some(pair_at + text.get(pair_at..)?.find('=')?)) {
            Some(equals_at) => OsString::from(format!("{}=***", &text[..equals_at])),
            None => option.clone(),
        }
    };
    options.iter().map(hide).collect()
}

/// A word as a shell takes it.
pub(crate) fn quote(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// The command line as clap sees it, for completion scripts.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use std::ffi::{OsStr, OsString};

    use super::{asked_format, quote, without_values};
    use crate::output::Format;

    #[test]
    fn words_are_quoted_as_a_shell_needs_it() {
        for (word, quoted) in [("a-b", "a-b"), ("", "''"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("$x", "'$x'")] {
            assert_eq!(quote(OsStr::new(word)), quoted);
        }
    }

    #[test]
    fn values_of_variables_and_settings_are_hidden() {
        let hidden = |line: &str| {
            let words = without_values(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            hidden("run -e A=1 -eB=2 --env=C=3 --env D=4 -e E"),
            "run -e A=*** -eB=*** --env=C=*** --env D=*** -e E"
        );
        assert_eq!(hidden("run --set=k=v --set k=v --timeout=5s a=b"), "run --set=k=*** --set k=*** --timeout=5s a=b");
        assert_eq!(hidden("run --env-file=x=y"), "run --env-file=x=y");
    }

    #[test]
    fn the_format_of_errors_is_found_in_a_wrong_command_line() {
        let format = |line: &str| asked_format(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(format("s run -o json --bad"), Format::Json);
        assert_eq!(format("s run -ojson --bad"), Format::Json);
        assert_eq!(format("s --output=jsonl nothing"), Format::Jsonl);
        assert_eq!(format("s run -- x -o json"), Format::Table);
    }

    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
