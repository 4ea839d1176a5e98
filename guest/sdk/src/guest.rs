// SPDX-License-Identifier: Apache-2.0
//! What a guest is told on its kernel command line.

/// The value of `name=value` on the kernel command line. The last one wins, as it does in the kernel.
pub fn parameter(name: &str) -> Option<String> {
    let line = std::fs::read_to_string("/proc/cmdline").ok()?;
    find(&line, name).map(str::to_string)
}

/// Index of this VM (`chaos.vm=`), from 0.
pub fn vm() -> Option<u32> {
    parameter("chaos.vm")?.parse().ok()
}

/// How many VMs the cluster has (`chaos.vms=`).
pub fn vms() -> Option<u32> {
    parameter("chaos.vms")?.parse().ok()
}

/// The words after `--` on the kernel command line. The kernel hands them to its init, but mixed with words it did not know.
pub fn arguments() -> Vec<String> {
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    after_dashes(&line).map(str::to_string).collect()
}

fn after_dashes(line: &str) -> impl Iterator<Item = &str> {
    line.split_ascii_whitespace().skip_while(|word| *word != "--").skip(1)
}

fn find<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().rev().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::{after_dashes, find};

    #[test]
    fn the_last_parameter_of_a_name_wins() {
        let line = "console=ttyS0 chaos.vm=1 chaos.vms=3 chaos.vm=2\n";
        assert_eq!(find(line, "chaos.vm"), Some("2"));
        assert_eq!(find(line, "chaos.vms"), Some("3"));
        assert_eq!(find(line, "chaos"), None);
        assert_eq!(find(line, "console"), Some("ttyS0"));
    }

    #[test]
    fn arguments_follow_the_dashes() {
        let words = |line| after_dashes(line).collect::<Vec<_>>();
        assert_eq!(words("nokaslr a=b -- one --two -- three\n"), ["one", "--two", "--", "three"]);
        assert_eq!(words("nokaslr a=b"), [""; 0]);
    }
}
