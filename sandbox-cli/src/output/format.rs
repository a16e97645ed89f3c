use clap::ValueEnum;

/// How results are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    // Columns for people.
    #[default]
    Table,
    // More columns.
    Wide,
    // One JSON document; errors are JSON too, on standard error.
    Json,
    // One JSON document for each entry; errors are JSON too, on standard error.
    Jsonl,
    // Names alone, one a line.
    Name,
}

impl Format {
    /// True if a machine reads it, and so the errors too.
    pub(crate) fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::Jsonl)
    }
}
