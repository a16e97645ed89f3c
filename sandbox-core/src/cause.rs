//! Causes of an error of which only the texts are left, since they came over a boundary.

use std::{error::Error, fmt};

/// No honest chain is longer; a longer one is cut.
const MAX_CAUSES: usize = 32;

#[derive(Debug)]
pub(crate) struct Cause {
    text: String,
    next: Option<Box<Cause>>,
}

impl Cause {
    /// The causes, nearest first, as a chain; none of no text.
    pub(crate) fn chain(mut texts: Vec<String>) -> Option<Box<Self>> {
        texts.truncate(MAX_CAUSES);
        texts.into_iter().rev().fold(None, |next, text| Some(Box::new(Self { text, next })))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.next.as_deref().map(|next| next as &(dyn Error + 'static))
    }
}
