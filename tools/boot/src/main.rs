// SPDX-License-Identifier: AGPL-3.0-or-later
//! Boots N guests to setup_complete and stores one cluster snapshot.

use std::path::Path;
use std::process::ExitCode as ProcessCode;

use chaoscontrol_artifact::schema::{CoverageConfiguration, EDGES, Link, ProfileDocument, SmpConfiguration, VmProfile};
use chaoscontrol_artifact::{ExitCode, MediaType, StageResult, U64};
use chaoscontrol_cli::elf::code_range;
use chaoscontrol_cli::{
    ALLOW_UNFAITHFUL_KVM, Arguments, ENGINE, FROM, Failure, Failures, Flag, PIN_CORE, PROFILE, SEED, STORE, Stage,
    TIER, Tool, WATCHDOG, read_input, read_profile, stage_main,
};
use chaoscontrol_explore::machines::{Host, KERNEL_FROM, choose_tier};
use chaoscontrol_explore::stages::boot::{BootOptions, DiskOptions, SETUP_LIMIT_NS, boot};

/// Size of the disk that each VM has unless it is said otherwise: enough for a small log, and it costs what is written to it.
const DISK_MIB: u32 = 16;

static TOOL: Tool = Tool {
    name: "chaos-boot",
    stage: "boot",
    sources: &[include_str!("../Cargo.toml"), include_str!("main.rs")],
    summary: "boot N guests to setup_complete and store one cluster snapshot",
    about: "Boots N virtual machines from one kernel and one initrd, connected by a network, until every guest has \
            reported setup_complete. Kernel, initrd, run configuration, console output and the snapshot are objects in \
            the store. The same inputs give the same bytes on every machine.",
    reads: "A kernel (ELF vmlinux or bzImage), an initrd with an executable /init, disk images.",
    writes: "Objects: run, kernel, initrd, snapshot, a console a VM. On stdout: a descriptor.",
    flags: &[
        Flag::one("kernel", "FILE", "Kernel: an ELF vmlinux or a bzImage"),
        Flag::one("initrd", "FILE", "Initial RAM file system"),
        Flag::one("vms", "N", "Number of VMs, 1 to 32").default("3"),
        Flag::one("append", "TEXT", "Appended to every kernel command line"),
        Flag::many("append-vm", "N:TEXT", "Appended to the kernel command line of VM N, from 0"),
        Flag::one("memory-mib", "N", "RAM of each VM").default("64"),
        Flag::many("disk", "FILE", "Disk image; every VM gets its own copy"),
        Flag::many("disk-mib", "N", "An empty disk of N MiB for each VM, after those of --disk; 0 for no disk")
            .default("16 without --disk, else none"),
        Flag::switch("no-flush", "Disks offer no FLUSH: a completed write is durable"),
        SEED.default("0"),
        PROFILE,
        Flag::one("latency-ns", "N", "Delay of every link, at least 50000").default("1000000"),
        Flag::one("jitter-ns", "N", "Largest random delay on top").default("100000"),
        Flag::one("loss-ppm", "N", "Chance of every frame to get lost, in a million").default("500"),
        Flag::switch("legacy", "No ACPI: devices by command line, interrupts by the PIC"),
        Flag::one("ns-per-instruction", "N", "Guest nanoseconds per instruction, 1 to 1000").default("10"),
        Flag::one("cpus", "N", "CPUs of each VM, 1 to 8; several want a kernel with SMP").default("1"),
        Flag::one("quantum-instructions", "N", "Instructions a CPU runs before the next one's turn").default("2000"),
        Flag::one("cpu-schedule", "KIND", "Whose turn is next: round-robin, or random (drawn anew in each branch)")
            .choices(&["round-robin", "random"])
            .default("round-robin"),
        Flag::one("smp-schedule-journal-limit", "N", "Records of each VM's schedule journal; 0 keeps none")
            .default("0"),
        Flag::one(
            "coverage",
            "KIND",
            "Edges that the exact engine counts: those of user space, of the kernel, all or none",
        )
        .choices(&EDGES)
        .default("user"),
        Flag::one(
            "coverage-range",
            "LOW-HIGH",
            "Of these only those whose branch lies from LOW up to HIGH: hexadecimal, as nm prints",
        ),
        Flag::one("coverage-of", "FILE", "The same, with the code of this static program at fixed addresses"),
        Flag::one("setup-limit-ns", "N", "Cluster time by which setup must be complete").default("30000000000"),
        TIER,
        ENGINE.default("exact"),
        ALLOW_UNFAITHFUL_KVM,
        PIN_CORE,
        WATCHDOG,
        STORE,
        FROM,
    ],
    positional: None,
    exit_codes: &[ExitCode::BadInput, ExitCode::HostLacks, ExitCode::GuestFailed, ExitCode::BudgetExhausted],
    examples: [
        (
            "Three nodes with a planted bug",
            "chaos-boot --kernel vmlinux --initrd raft.cpio --vms 3 --seed 42 --append raft_bug=double_vote > boot.json",
        ),
        ("One VM with a disk", "chaos-boot --kernel bzImage --initrd app.cpio --vms 1 --disk-mib 64 | chaos-show"),
    ],
};

fn main() -> ProcessCode {
    #[cfg(feature = "canary")]
    chaoscontrol_machine::canary::leak(chaoscontrol_cli::canary::host_ns);
    stage_main(&TOOL, work)
}

fn work(stage: &Stage) -> Failures<StageResult> {
    choose_tier(stage.context.arguments.text("tier")?.as_deref());
    let profile = stage.context.arguments.path("profile").map(|path| read_profile(stage.store, &path)).transpose()?;
    let options = options(stage, profile.as_ref())?;
    let progress = &stage.context.progress;
    let mut result = boot(stage.store, &options, &|done, total, note| progress.at(done, total, note))?;
    if let Some(profile) = profile {
        result.inputs.push(Link::new("profile", stage.store.publish(&profile)?));
    }
    Ok(result)
}

/// What the profile says, else what holds without one; flags go before either.
fn defaults(profile: Option<&ProfileDocument>) -> Failures<VmProfile> {
    let none = VmProfile {
        vms: 3,
        memory_mib: 64,
        append: String::new(),
        append_vm: Vec::new(),
        disks_mib: vec![DISK_MIB],
        flush: true,
        seed: U64(0),
        latency_ns: U64(1_000_000),
        jitter_ns: U64(100_000),
        loss_ppm: 500,
        firmware: "acpi".to_owned(),
        ns_per_instruction: 10,
        setup_limit_ns: U64(SETUP_LIMIT_NS),
    };
    let Some(profile) = profile else { return Ok(none) };
    profile.values.vm().cloned().ok_or_else(|| {
        let kind = profile.values.kind();
        Failure::input(format!("--profile: a {kind} profile describes no cluster; vm-run and workload profiles do"))
    })
}

fn options(stage: &Stage, profile: Option<&ProfileDocument>) -> Failures<BootOptions> {
    let arguments = &stage.context.arguments;
    let defaults = defaults(profile)?;
    let initrd = arguments.path("initrd");
    let vms = arguments.number_within("vms", 1, 32, u64::from(defaults.vms))? as u16;
    let append_vm = append_vm(&arguments.texts("append-vm")?, vms)?;
    let (allow_unfaithful, pin_core, watchdog_s) = arguments.kvm()?;
    let host = Host::from_flags(arguments.text("engine")?.as_deref(), allow_unfaithful, pin_core, watchdog_s)
        .map_err(Failure::usage)?;
    Ok(BootOptions {
        kernel: read_input(&arguments.required("kernel")?, MediaType::Kernel.max_bytes())?,
        initrd: initrd.map(|path| read_input(&path, MediaType::Initrd.max_bytes())).transpose()?,
        vms,
        append: arguments.text("append")?.unwrap_or(defaults.append.clone()),
        append_vm: if arguments.is_set("append-vm") { append_vm } else { defaults.append_vm.clone() },
        memory_bytes: arguments.number_within("memory-mib", 4, 1 << 16, u64::from(defaults.memory_mib))? << 20,
        disks: disks(arguments, &defaults)?,
        seed: arguments.number("seed")?.unwrap_or(defaults.seed.0),
        network: (
            arguments.number_within("latency-ns", 50_000, 60_000_000_000, defaults.latency_ns.0)?,
            arguments.number_within("jitter-ns", 0, 60_000_000_000, defaults.jitter_ns.0)?,
            arguments.number_within("loss-ppm", 0, 500_000, defaults.loss_ppm.into())? as u32,
        ),
        engine: host.engine.unwrap_or_default(),
        kvm: host.kvm,
        legacy: arguments.is_set("legacy") || defaults.firmware == "legacy",
        ns_per_instruction: arguments.number_within(
            "ns-per-instruction",
            1,
            1000,
            defaults.ns_per_instruction.into(),
        )? as u32,
        // 2025-01-01 00:00:00 UTC: any fixed time serves, the host's clock does not.
        wall_clock_start_ns: 1_735_689_600_000_000_000,
        smp: smp(arguments)?,
        coverage: coverage(arguments)?,
        setup_limit_ns: arguments.number_within("setup-limit-ns", 1, 86_400_000_000_000, defaults.setup_limit_ns.0)?,
    })
}

/// Those of `--disk` and `--disk-mib`, else those of the profile.
fn disks(arguments: &Arguments, defaults: &VmProfile) -> Failures<Vec<DiskOptions>> {
    let flush = !arguments.is_set("no-flush") && defaults.flush;
    let empty = |mib: u64| DiskOptions { image: None, size_bytes: mib << 20, flush };
    if !arguments.is_set("disk") && !arguments.is_set("disk-mib") {
        return Ok(defaults.disks_mib.iter().map(|mib| empty(u64::from(*mib))).collect());
    }
    let mut disks = Vec::new();
    for path in arguments.all("disk") {
        let image = read_input(Path::new(path), MediaType::Disk.max_bytes())?;
        let size_bytes = (image.len() as u64).next_multiple_of(512);
        disks.push(DiskOptions { image: Some(image), size_bytes, flush });
    }
    for text in arguments.texts("disk-mib")? {
        let mib: u64 = text.parse().ok().filter(|mib| (0..=1 << 20).contains(mib)).ok_or_else(|| {
            Failure::usage(format!("--disk-mib is {text:?}, it must be a number between 0 and 1048576"))
        })?;
        disks.extend((mib > 0).then(|| empty(mib)));
    }
    Ok(disks)
}

/// Several CPUs, if that is what was asked for.
fn smp(arguments: &Arguments) -> Failures<Option<SmpConfiguration>> {
    let cpus = arguments.number_within("cpus", 1, 8, 1)? as u8;
    let quantum_instructions = U64(arguments.number_within("quantum-instructions", 1, 1_000_000_000, 2_000)?);
    let schedule = arguments.text("cpu-schedule")?.unwrap_or_else(|| "round-robin".to_owned());
    let smp_schedule_journal_limit = arguments.number_within("smp-schedule-journal-limit", 0, 1 << 20, 0)? as u32;
    let smp = SmpConfiguration { cpus, quantum_instructions, schedule, smp_schedule_journal_limit };
    Ok((cpus > 1).then_some(smp))
}

/// Which edges are counted, if that is not every one of user space.
fn coverage(arguments: &Arguments) -> Failures<Option<CoverageConfiguration>> {
    let whole = CoverageConfiguration::default();
    let edges = arguments.text("coverage")?.unwrap_or(whole.edges.clone());
    let range = match (arguments.text("coverage-range")?, arguments.path("coverage-of")) {
        (None, None) => None,
        (Some(_), Some(_)) => {
            return Err(Failure::usage("--coverage-range and --coverage-of both say which addresses count: give one"));
        }
        (Some(text), None) => Some(addresses(&text)?),
        (None, Some(path)) => {
            let program = read_input(&path, MediaType::Initrd.max_bytes())?;
            Some(code_range(&program).map_err(|why| {
                let path = path.display();
                Failure::input(format!("--coverage-of {path}: it {why}; --coverage-range takes addresses instead"))
            })?)
        }
    };
    if let Some((low, high)) = range {
        let nothing = |what| Failure::usage(format!("--coverage {edges} counts nothing in {low:#x}-{high:#x}: {what}"));
        if edges == "none" {
            return Err(nothing("leave the range out"));
        }
        if edges == "kernel" && high <= KERNEL_FROM {
            return Err(nothing("the kernel's addresses begin at 0x8000000000000000"));
        }
    }
    let (low, high) = range.unwrap_or((whole.low.0, whole.high.0));
    let coverage = CoverageConfiguration { edges, low: U64(low), high: U64(high) };
    Ok((coverage != whole).then_some(coverage))
}

/// `LOW-HIGH` in hexadecimal, with or without 0x.
fn addresses(text: &str) -> Failures<(u64, u64)> {
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    let range = text.split_once('-').and_then(|(low, high)| Some((number(low)?, number(high)?)));
    range.filter(|(low, high)| low < high).ok_or_else(|| {
        Failure::usage(format!(
            "--coverage-range is {text:?}, it must be LOW-HIGH: two hexadecimal addresses, the second above the first"
        ))
    })
}

/// `N:TEXT` by VM; several for one VM are joined.
fn append_vm(given: &[String], vms: u16) -> Failures<Vec<String>> {
    let mut append: Vec<String> = Vec::new();
    for text in given {
        let bad = || Failure::usage(format!("--append-vm is {text:?}, it must be N:TEXT with N below {vms}"));
        let (vm, text) = text.split_once(':').ok_or_else(bad)?;
        let vm: usize = vm.parse().ok().filter(|vm| *vm < usize::from(vms)).ok_or_else(bad)?;
        if append.len() <= vm {
            append.resize(vm + 1, String::new());
        }
        if !append[vm].is_empty() {
            append[vm].push(' ');
        }
        append[vm].push_str(text);
    }
    Ok(append)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_states_the_defaults_that_hold() {
        let said = |name: &str| TOOL.flags.iter().find(|flag| flag.long == name).and_then(|flag| flag.default).unwrap();
        let hold = defaults(None).unwrap();
        let expected = [
            ("vms", hold.vms.to_string()),
            ("memory-mib", hold.memory_mib.to_string()),
            ("seed", hold.seed.to_string()),
            ("latency-ns", hold.latency_ns.to_string()),
            ("jitter-ns", hold.jitter_ns.to_string()),
            ("loss-ppm", hold.loss_ppm.to_string()),
            ("ns-per-instruction", hold.ns_per_instruction.to_string()),
            ("setup-limit-ns", hold.setup_limit_ns.to_string()),
        ];
        for (name, value) in expected {
            assert_eq!(said(name), value, "--{name}");
        }
        assert!(said("disk-mib").starts_with(&format!("{} ", hold.disks_mib[0])));
    }
}
