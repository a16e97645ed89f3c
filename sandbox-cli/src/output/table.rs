use std::fmt;

/// Columns without borders: headers in upper case, two blanks between columns, nothing wrapped, no blanks at line ends.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headers.
    pub(crate) fn new<T: Into<String>>(headers: impl IntoIterator<Item = T>) -> Self {
        Self { rows: vec![headers.into_iter().map(Into::into).collect()] }
    }

    /// Rows without headers.
    pub(crate) fn headless() -> Self {
        Self::default()
    }

    /// Adds a row. Line ends and other control characters in a cell become blanks: a cell may hold foreign text.
    pub(crate) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let clean = |cell: T| cell.into().replace(|c: char| c.is_control(), " ");
        self.rows.push(cells.into_iter().map(clean).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:<width$}  "));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up_and_no_line_ends_with_blanks() {
        let mut table = Table::new(["NAME", "STATE"]);
        table.row(["a", "ready"]);
        table.row(["longer-ä", "no\nline"]);
        assert_eq!(table.to_string(), "NAME      STATE\na         ready\nlonger-ä  no line\n");
    }
}
