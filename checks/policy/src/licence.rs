// SPDX-License-Identifier: AGPL-3.0-or-later
//! SPDX licence expressions: `A OR B`, `A AND B`, `A WITH exception`, parentheses, and the old `A/B`.

/// Whether the expression can be met with licences that `allowed` accepts. `A WITH E` is asked for as one text.
///
/// # Errors
/// When the text is no such expression.
pub fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, allowed };
    let holds = reader.any()?;
    match reader.words {
        [] => Ok(holds),
        [word, ..] => Err(format!("{word:?} stands where the expression should end")),
    }
}

struct Reader<'a> {
    words: &'a [&'a str],
    allowed: &'a dyn Fn(&str) -> bool,
}

impl Reader<'_> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }

    fn any(&mut self) -> Result<bool, String> {
        let mut holds = self.all()?;
        while self.take("OR") {
            holds |= self.all()?;
        }
        Ok(holds)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut holds = self.one()?;
        while self.take("AND") {
            holds &= self.one()?;
        }
        Ok(holds)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let holds = self.any()?;
            return if self.take(")") { Ok(holds) } else { Err("a parenthesis is not closed".to_owned()) };
        }
        let (name, rest) = self.words.split_first().ok_or("a licence is missing at the end")?;
        if ["OR", "AND", "WITH", ")"].contains(name) {
            return Err(format!("{name:?} stands where a licence should"));
        }
        self.words = rest;
        if !self.take("WITH") {
            return Ok((self.allowed)(name));
        }
        let (exception, rest) = self.words.split_first().ok_or("an exception is missing at the end")?;
        self.words = rest;
        Ok((self.allowed)(&format!("{name} WITH {exception}")))
    }
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    fn holds(expression: &str) -> bool {
        satisfied(expression, &|one| ["MIT", "Apache-2.0", "Zlib", "Apache-2.0 WITH LLVM-exception"].contains(&one))
            .unwrap()
    }

    #[test]
    fn one_alternative_is_enough_and_every_part_is_needed() {
        for yes in
            ["MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "(MIT OR GPL-3.0) AND Zlib", "Apache-2.0 WITH LLVM-exception"]
        {
            assert!(holds(yes), "{yes}");
        }
        for no in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Zlib) AND GPL-3.0", "MIT WITH LLVM-exception"] {
            assert!(!holds(no), "{no}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for wrong in ["", "MIT OR", "(MIT", "MIT)", "AND MIT", "MIT Zlib", "MIT WITH"] {
            assert!(satisfied(wrong, &|_| true).is_err(), "{wrong:?}");
        }
    }
}
