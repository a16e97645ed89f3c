//! The forms that values of options have in a compose document.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::Error};

/// Text, or a number that stands for its text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Word {
    Text(String),
    Number(serde_json::Number),
}

impl Word {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
        }
    }
}

/// Text, or a number that stands for its text.
pub(super) fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<Word>::deserialize(deserializer)?.map(Word::into_text))
}

/// One text, or a list of them.
pub(super) fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Words {
        One(Word),
        Many(Vec<Word>),
    }
    Ok(match Words::deserialize(deserializer)? {
        Words::One(word) => vec![word.into_text()],
        Words::Many(words) => words.into_iter().map(Word::into_text).collect(),
    })
}

/// A mapping of texts, or a list of `name=value`.
pub(super) fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Pairs {
        Map(BTreeMap<String, Word>),
        List(Vec<String>),
    }
    match Pairs::deserialize(deserializer)? {
        Pairs::Map(map) => Ok(map.into_iter().map(|(name, value)| (name, value.into_text())).collect()),
        Pairs::List(list) => list
            .into_iter()
            .map(|pair| match pair.split_once('=') {
                Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
                None => Err(D::Error::custom("every entry of the list must be name=value")),
            })
            .collect(),
    }
}

/// `true` and `false`, also as text.
pub(super) fn switch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Switch {
        On(bool),
        Text(String),
    }
    match Switch::deserialize(deserializer)? {
        Switch::On(is_on) => Ok(is_on),
        Switch::Text(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Switch::Text(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        Switch::Text(_) => Err(D::Error::custom("must be true or false")),
    }
}

/// A whole number, also as text.
pub(super) fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let word = Option::<Word>::deserialize(deserializer)?.map(Word::into_text);
    word.map(|text| text.trim().parse().map_err(|_| D::Error::custom("must be a whole number"))).transpose()
}

/// A number of bytes, or text such as `64m`; `-1` for no limit.
pub(super) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let word = Option::<Word>::deserialize(deserializer)?.map(Word::into_text);
    word.map(|text| {
        parse_bytes(&text).ok_or_else(|| D::Error::custom("must be a number of bytes, such as 1048576 or 64m"))
    })
    .transpose()
}

fn parse_bytes(text: &str) -> Option<i64> {
    let text = text.trim().to_ascii_lowercase();
    if text == "-1" {
        return Some(-1);
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor: f64 = match unit.trim_end_matches('b') {
        "" => 1.0,
        "k" => 1024.0,
        "m" => 1_048_576.0,
        "g" => 1_073_741_824.0,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * factor;
    (bytes < 9e18).then_some(bytes as i64)
}

/// One limit of each process: a number for both, or `{soft, hard}`; -1 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ulimit {
    pub(crate) soft: i64,
    pub(crate) hard: i64,
}

impl<'de> Deserialize<'de> for Ulimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Both(Word),
            Each { soft: Word, hard: Word },
        }
        let number = |word: Word| match word.into_text().parse::<i64>() {
            Ok(number) if number >= -1 => Ok(number),
            _ => Err(D::Error::custom("a limit must be a whole number, or -1 for none")),
        };
        match Form::deserialize(deserializer)? {
            Form::Both(both) => number(both).map(|both| Self { soft: both, hard: both }),
            Form::Each { soft, hard } => Ok(Self { soft: number(soft)?, hard: number(hard)? }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn sizes_are_read_as_a_compose_document_has_them() {
        let of = |text: &str| parse_bytes(text);
        assert_eq!((of("64m"), of("1.5k"), of("7"), of("2GB"), of("-1")), {
            (Some(64 << 20), Some(1536), Some(7), Some(2 << 30), Some(-1))
        });
        assert_eq!((of("x"), of("5q"), of("-2"), of("")), (None, None, None, None));
    }
}
