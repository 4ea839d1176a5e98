// SPDX-License-Identifier: AGPL-3.0-or-later
//! Versions, and the requirements that advisories state: `>= 1.2.3`, `< 2`, `> 1`, `= 1.0.0`, `^0.3.1`, several with commas.

use std::fmt;

/// A version. Of two with the same numbers the one with a pre-release is the earlier; pre-releases compare as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    numbers: [u64; 3],
    pre_release: String,
}

impl Version {
    /// Reads `1`, `1.2` or `1.2.3`, with `-pre` and `+build` behind it; what is left out is 0.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.split('+').next()?;
        let (numbers, pre_release) = text.split_once('-').unwrap_or((text, ""));
        let mut parts = [0; 3];
        let mut given = numbers.split('.');
        for part in &mut parts {
            match given.next() {
                Some(digits) => *part = digits.parse().ok()?,
                None => break,
            }
        }
        given.next().is_none().then(|| Self { numbers: parts, pre_release: pre_release.to_owned() })
    }

    fn key(&self) -> ([u64; 3], bool, &str) {
        (self.numbers, self.pre_release.is_empty(), &self.pre_release)
    }

    /// Whether one of the requirements holds.
    ///
    /// # Errors
    /// When one is not understood.
    pub fn is_one_of(&self, requirements: &[String]) -> Result<bool, String> {
        for requirement in requirements {
            if self.meets(requirement)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn meets(&self, requirement: &str) -> Result<bool, String> {
        for part in requirement.split(',').map(str::trim) {
            let digits = part.find(|c: char| c.is_ascii_digit()).unwrap_or(part.len());
            let (operator, number) = (part[..digits].trim(), &part[digits..]);
            let bound = Self::parse(number).ok_or_else(|| format!("{requirement:?} is no version requirement"))?;
            let holds = match operator {
                ">=" => self.key() >= bound.key(),
                ">" => self.key() > bound.key(),
                "<=" => self.key() <= bound.key(),
                "<" => self.key() < bound.key(),
                "=" => self == &bound,
                "^" | "" => self.key() >= bound.key() && self.numbers < bound.next_incompatible(),
                _ => return Err(format!("{requirement:?} has the unknown operator {operator:?}")),
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The first version that a caret requirement excludes: the leftmost number that is not 0 goes up.
    fn next_incompatible(&self) -> [u64; 3] {
        match self.numbers {
            [0, 0, patch] => [0, 0, patch + 1],
            [0, minor, _] => [0, minor + 1, 0],
            [major, ..] => [major + 1, 0, 0],
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        let dash = if self.pre_release.is_empty() { "" } else { "-" };
        write!(formatter, "{major}.{minor}.{patch}{dash}{}", self.pre_release)
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn requirements_hold_where_they_say() {
        let cases = [
            ("1.6.1", ">= 1.6.1", true),
            ("1.6.0", ">= 1.6.1", false),
            ("0.6.14", ">= 0.6.14, < 1.0.0", true),
            ("1.0.0", ">= 0.6.14, < 1.0.0", false),
            ("0.3.9", "^0.3.4", true),
            ("0.4.0", "^ 0.3.4", false),
            ("0.0.3", "^0.0.3", true),
            ("0.0.4", "^0.0.3", false),
            ("1.10.4", "> 1.10.3", true),
            ("0.6.0-rc1", "< 0.6.0", true),
            ("0.6.0", "< 0.6.0-rc1", false),
            ("2.0.0+build", "= 2", true),
        ];
        for (version, requirement, expected) in cases {
            let met = Version::parse(version).unwrap().is_one_of(&[requirement.to_owned()]).unwrap();
            assert_eq!(met, expected, "{version} {requirement}");
        }
        let version = Version::parse("1.0.0").unwrap();
        assert!(!version.is_one_of(&[]).unwrap(), "nothing is safe where nothing is patched");
        assert!(version.is_one_of(&["~1".to_owned()]).is_err());
    }
}
