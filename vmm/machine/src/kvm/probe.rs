// SPDX-License-Identifier: AGPL-3.0-or-later
//! What this host's KVM is like, found out by running tiny guests.
//!
//! A KVM is faithful if guest code runs on it as on a CPU of our model. Some hosts offer a /dev/kvm without virtualization
//! hardware below it: kernel code then goes through KVM's instruction emulator, which knows only a part of the instructions.

use std::sync::{Arc, OnceLock};

use chaoscontrol_cpu::CpuState;
use chaoscontrol_cpu::model::LEAVES;
use chaoscontrol_cpu::state::{Segment, seg};
use kvm_ioctls::{Cap, Kvm};
use serde::{Deserialize, Serialize};

use super::cpuid;
use super::error::KvmError;
use super::pmu::GuestCounter;
use super::regs;
use super::vcpu::{Event, Vcpu, open};
use crate::boot::entry;
use crate::config::KvmMode;
use crate::engine::CpuModel;
use crate::memory::{GuestMemory, MEMORY_BYTES_MIN};

/// Where the guests lie, their stack, and a byte outside of RAM.
const CODE: u64 = 0x10_0000;
const STACK: u64 = 0x18_0000;
const OUTSIDE: u64 = 0xd000_0000;
/// Page directory of the first GiB (see [`entry::write_tables`]).
const DIRECTORY: u64 = crate::boot::place::PAGE_TABLES + 0x2000;

/// Whether one mode can be used here, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModeReport {
    /// Name of the mode, as `--engine` takes it.
    pub name: String,
    /// Whether it starts here, where need be with `--allow-unfaithful-kvm`.
    pub works: bool,
    /// Why not.
    pub why_not: Option<String>,
    /// What of the host a guest can see in it.
    pub leaks: Vec<String>,
}

/// Everything that was found out. Nothing in it was measured with a clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostReport {
    /// /dev/kvm opens and has what the engine needs.
    pub present: bool,
    /// Guest code runs as on a CPU of our model.
    pub faithful: bool,
    /// Why it is not present, or not faithful.
    pub reasons: Vec<String>,
    /// Kernel code is emulated.
    pub ring0_emulated: bool,
    /// CPUID gives the model, in kernel and in user code.
    pub cpuid_filtered: bool,
    /// RDTSC reaches the host's TSC.
    pub rdtsc_reachable: bool,
    /// RDRAND executes though CPUID denies it.
    pub rdrand_reachable: bool,
    /// Features of the model that this KVM does not offer.
    pub missing_features: Vec<String>,
    /// One entry executes one instruction.
    pub single_step: bool,
    /// A single step of HLT is reported as such and not as a step.
    pub halt_seen_in_step: bool,
    /// What the host writes to a guest's page tables counts at once.
    pub host_page_tables_seen: bool,
    /// The guest's TSC can be slowed down.
    pub tsc_scaling: bool,
    /// Guest instructions can be counted; else why not.
    pub pmu: bool,
    /// Why not.
    pub pmu_why_not: Option<String>,
    /// The modes.
    pub modes: Vec<ModeReport>,
}

/// What exits and kernel code cost here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExitCost {
    /// One exit to user space, in ns.
    pub exit_ns: u64,
    /// One single step, in ns.
    pub step_ns: u64,
    /// Instructions a second of a loop in kernel code.
    pub ring0_instructions_per_second: u64,
}

/// The report on this host, made once a process.
pub fn report() -> &'static HostReport {
    static REPORT: OnceLock<HostReport> = OnceLock::new();
    REPORT.get_or_init(probe)
}

impl HostReport {
    fn absent(why: String) -> Self {
        let mut report = Self {
            present: false,
            faithful: false,
            reasons: vec![why],
            ring0_emulated: false,
            cpuid_filtered: false,
            rdtsc_reachable: false,
            rdrand_reachable: false,
            missing_features: Vec::new(),
            single_step: false,
            halt_seen_in_step: false,
            host_page_tables_seen: false,
            tsc_scaling: false,
            pmu: false,
            pmu_why_not: None,
            modes: Vec::new(),
        };
        report.modes = KvmMode::ALL.map(|mode| report.mode(mode)).to_vec();
        report
    }

    /// Refuses a mode that cannot work here, with the reason.
    pub fn check(&self, mode: KvmMode) -> Result<(), KvmError> {
        let lacks = |why: &str| Err(KvmError::HostLacks(format!("{}: {why}", mode.name())));
        match mode {
            _ if !self.present => lacks(&self.reasons.join("; ")),
            KvmMode::SingleStep | KvmMode::Pmu if !self.single_step => {
                lacks("an entry does not execute one instruction")
            }
            KvmMode::Pmu if !self.pmu => lacks(self.pmu_why_not.as_deref().unwrap_or("no counter")),
            _ => Ok(()),
        }
    }

    /// What of the host a guest can see in a mode.
    pub fn leaks(&self, mode: KvmMode) -> Vec<String> {
        let freely = mode != KvmMode::SingleStep;
        let leaks = [
            (freely && self.rdtsc_reachable && !self.tsc_scaling, "rdtsc: reads the host's time; CPUID hides it"),
            (freely && self.rdtsc_reachable && self.tsc_scaling, "rdtsc: one tick a host millisecond within an exit"),
            (freely && self.rdrand_reachable, "rdrand: executes though CPUID denies it"),
            (freely, "undefined flags and approximations are those of the host CPU"),
            (freely && !self.cpuid_filtered, "cpuid: shows the host"),
        ];
        leaks.into_iter().filter(|(leaks, _)| *leaks).map(|(_, text)| text.to_owned()).collect()
    }

    fn mode(&self, mode: KvmMode) -> ModeReport {
        let refusal = self.check(mode).err().map(|error| error.to_string());
        ModeReport {
            name: mode.name().to_owned(),
            works: refusal.is_none(),
            why_not: refusal,
            leaks: if self.present { self.leaks(mode) } else { Vec::new() },
        }
    }
}

/// Runs the tiny guests.
pub fn probe() -> HostReport {
    let ran = open().and_then(|kvm| look(&kvm));
    ran.unwrap_or_else(|error| HostReport::absent(error.to_string()))
}

fn look(kvm: &Kvm) -> Result<HostReport, KvmError> {
    let mut report = HostReport::absent(String::new());
    (report.present, report.reasons) = (true, Vec::new());
    let mut lab = Lab::new(kvm)?;

    // mov al, 0x5a; out 0x80, al; hlt
    let plain = lab.kernel(&[0xb0, 0x5a, 0xe6, 0x80, 0xf4])?;
    let out = Event::PortWrite { port: 0x80, size: 1, data: vec![0x5a] };
    if plain.run()? != out || plain.run()? != Event::Halted {
        report.reasons.push("a port access or a halt does not come back".to_owned());
    }
    look_at_kernel_code(&mut lab, &mut report)?;
    look_at_cpuid(&mut lab, &mut report)?;
    // rdtsc; rdrand eax
    report.rdtsc_reachable = reaches(&mut lab, &[0x0f, 0x31])?;
    report.rdrand_reachable = reaches(&mut lab, &[0x0f, 0xc7, 0xf0])?;
    look_at_steps(&mut lab, &mut report)?;
    look_at_page_tables(&lab, &mut report)?;
    let offered = kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES);
    report.missing_features = match offered {
        Ok(offered) => cpuid::missing(&offered).into_iter().map(str::to_owned).collect(),
        Err(error) => vec![format!("all: KVM_GET_SUPPORTED_CPUID: {error}")],
    };
    if !report.missing_features.is_empty() {
        report.reasons.push(format!("kvm does not offer {}", report.missing_features.join(", ")));
    }
    report.tsc_scaling = kvm.check_extension(Cap::TscControl);
    report.pmu_why_not = GuestCounter::new().err().map(|error| error.to_string());
    report.pmu = report.pmu_why_not.is_none();
    report.faithful = report.reasons.is_empty();
    report.modes = KvmMode::ALL.map(|mode| report.mode(mode)).to_vec();
    Ok(report)
}

/// Makes guests: one VM for all that run in kernel code, one for each that runs in user code, whose tables differ.
struct Lab<'a> {
    kvm: &'a Kvm,
    kernel: Guest,
}

impl<'a> Lab<'a> {
    fn new(kvm: &'a Kvm) -> Result<Self, KvmError> {
        Ok(Self { kvm, kernel: Guest::new(kvm, false, &[])? })
    }

    fn kernel(&mut self, code: &[u8]) -> Result<&mut Guest, KvmError> {
        self.kernel.start(false, code)?;
        Ok(&mut self.kernel)
    }

    fn user(&self, code: &[u8]) -> Result<Guest, KvmError> {
        Guest::new(self.kvm, true, code)
    }
}

/// Instructions that every CPU executes and an emulator often does not.
fn look_at_kernel_code(lab: &mut Lab, report: &mut HostReport) -> Result<(), KvmError> {
    let cases: [(&str, &[u8]); 4] = [
        ("PXOR", &[0x66, 0x0f, 0xef, 0xc0, 0xf4]),
        ("FLD1", &[0xd9, 0xe8, 0xf4]),
        ("POPCNT", &[0xf3, 0x0f, 0xb8, 0xc0, 0xf4]),
        ("CMPXCHG16B", &[0x48, 0x0f, 0xc7, 0x0c, 0x24, 0xf4]),
    ];
    let mut unknown = Vec::new();
    for (name, code) in cases {
        if lab.kernel(code)?.run()? != Event::Halted {
            unknown.push(name);
        }
    }
    if !unknown.is_empty() {
        report.ring0_emulated = true;
        report.reasons.push(format!("kernel code is emulated: {} fail there", unknown.join(", ")));
    }
    Ok(())
}

fn look_at_cpuid(lab: &mut Lab, report: &mut HostReport) -> Result<(), KvmError> {
    let mut differing = Vec::new();
    // Every leaf of the model, and some that hosts have and it does not.
    let kernel = LEAVES.into_iter().chain([4, 0xd, 0x1f, 0x4000_0000]).map(|function| (false, function));
    for (user, function) in kernel.chain([(true, 1), (true, 7)]) {
        // mov eax, function; xor ecx, ecx; cpuid; mov ebp, ebx; mov esi, ecx; then leave
        let mut code = vec![0xb8];
        code.extend(function.to_le_bytes());
        code.extend([0x31, 0xc9, 0x0f, 0xa2, 0x89, 0xdd, 0x89, 0xce]);
        code.extend(LEAVE);
        let mut user_guest = if user { Some(lab.user(&code)?) } else { None };
        let guest = match &mut user_guest {
            Some(guest) => guest,
            None => lab.kernel(&code)?,
        };
        let event = guest.run()?;
        let regs = guest.vcpu.regs();
        let [_, ebx, ecx, edx] = cpuid::leaf(CpuModel::Full, function);
        if event != left() || [regs.rbp, regs.rsi, regs.rdx] != [ebx, ecx, edx].map(u64::from) {
            differing.push(format!("{function:#x}{}", if user { " in user code" } else { "" }));
        }
    }
    report.cpuid_filtered = differing.is_empty();
    if !report.cpuid_filtered {
        report.reasons.push(format!("cpuid does not give the model in leaf {}", differing.join(", ")));
    }
    Ok(())
}

/// Whether an instruction executes in kernel or user code (an exception ends these guests by a triple fault).
fn reaches(lab: &mut Lab, code: &[u8]) -> Result<bool, KvmError> {
    let code = [code, &LEAVE].concat();
    Ok(lab.kernel(&code)?.run()? == left() || lab.user(&code)?.run()? == left())
}

fn look_at_steps(lab: &mut Lab, report: &mut HostReport) -> Result<(), KvmError> {
    // nop; inc eax; push rax; jmp +0; hlt
    let guest = lab.kernel(&[0x90, 0xff, 0xc0, 0x50, 0xeb, 0x00, 0xf4])?;
    guest.vcpu.set_single_step(true)?;
    report.single_step = true;
    for end in [1, 3, 4, 6] {
        report.single_step &= guest.run()? == Event::Stepped && guest.vcpu.regs().rip == CODE + end;
    }
    report.single_step &= guest.vcpu.regs().rax == 1;
    report.halt_seen_in_step = guest.run()? == Event::Halted;
    guest.vcpu.set_single_step(false)?;
    if !report.single_step {
        report.reasons.push("a single step does not execute one instruction".to_owned());
    }
    Ok(())
}

/// How often a mapping is changed. Where changes go unseen one may still be seen, because the host dropped what it had
/// derived for a reason of its own; what is said of a host must not depend on that.
const CHANGES: usize = 64;

/// Changes a mapping under a guest in user code, as a restore does.
fn look_at_page_tables(lab: &Lab, report: &mut HostReport) -> Result<(), KvmError> {
    let mut guest = lab.user(&reader())?;
    report.host_page_tables_seen = true;
    for value in [1, 2].into_iter().cycle().take(CHANGES) {
        guest.map(value)?;
        report.host_page_tables_seen &= guest.run()? == read(value);
    }
    if !report.host_page_tables_seen {
        report.reasons.push("page tables that the host writes go unseen in user code".to_owned());
    }
    Ok(())
}

/// Reads a byte at 4 MiB and hands it out, again and again.
fn reader() -> Vec<u8> {
    // mov ecx, 0x400000; again: mov bl, [rcx]; mov eax, OUTSIDE; mov [rax], bl; jmp again
    let mut code = vec![0xb9, 0, 0, 0x40, 0, 0x8a, 0x19, 0xb8];
    code.extend((OUTSIDE as u32).to_le_bytes());
    code.extend([0x88, 0x18, 0xeb, 0xf5]);
    code
}

/// What [`reader`] leaves with where it read `value`.
fn read(value: u8) -> Event {
    Event::MmioWrite { address: OUTSIDE, size: 1, value: u64::from(value) }
}

/// mov eax, OUTSIDE; mov byte [rax], 1
const LEAVE: [u8; 8] = [0xb8, 0, 0, 0, 0xd0, 0xc6, 0x00, 0x01];

fn left() -> Event {
    Event::MmioWrite { address: OUTSIDE, size: 1, value: 1 }
}

/// One tiny guest.
struct Guest {
    vcpu: Vcpu,
    memory: Arc<GuestMemory>,
}

impl Guest {
    fn new(kvm: &Kvm, user: bool, code: &[u8]) -> Result<Self, KvmError> {
        let failed = |error: String| KvmError::Call { call: "a tiny guest", why: error };
        let memory = Arc::new(GuestMemory::new(MEMORY_BYTES_MIN).map_err(|error| failed(error.to_string()))?);
        entry::write_tables(&memory).map_err(|error| failed(error.to_string()))?;
        let mut guest = Self { vcpu: Vcpu::new(kvm, memory.clone(), CpuModel::Full)?, memory };
        if user {
            guest.open_to_users();
        }
        guest.start(user, code)?;
        Ok(guest)
    }

    /// Begins anew with other code.
    fn start(&mut self, user: bool, code: &[u8]) -> Result<(), KvmError> {
        let mut state = entry::state(CODE);
        state.gpr[4] = STACK;
        // SSE on.
        state.cr4 |= 0x600;
        if user {
            state = in_ring_3(state);
        }
        self.put(CODE, code);
        regs::push(&mut self.vcpu, &state, None)
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        self.memory.write(address, bytes).expect("tiny guests lie in the smallest memory");
    }

    fn open_to_users(&self) {
        let tables = crate::boot::place::PAGE_TABLES;
        for address in (tables..tables + 0x6000).step_by(8) {
            let mut entry = [0; 8];
            self.memory.read(address, &mut entry).expect("tables lie in the smallest memory");
            if entry[0] & 1 == 1 {
                entry[0] |= 4;
                self.put(address, &entry);
            }
        }
    }

    /// Maps 4 MiB to a frame that begins with `value`, 1 or 2, and loads CR3 anew.
    fn map(&mut self, value: u8) -> Result<(), KvmError> {
        let frame = u64::from(value - 1) << 21;
        self.put(frame, &[value]);
        self.put(DIRECTORY + 2 * 8, &(frame | 0x87).to_le_bytes());
        let sregs = self.vcpu.sregs();
        self.vcpu.set_sregs(&sregs)
    }

    fn run(&mut self) -> Result<Event, KvmError> {
        loop {
            match self.vcpu.enter()? {
                Event::Interrupted => {}
                event => return Ok(event),
            }
        }
    }
}

fn in_ring_3(mut state: CpuState) -> CpuState {
    let data = Segment { selector: 0x23, base: 0, limit: u32::MAX, attributes: 0xc0f3 };
    state.segments = [data; 6];
    state.segments[seg::CS] = Segment { selector: 0x2b, attributes: 0xa0fb, ..data };
    state
}

/// Measures with the caller's clock, which gives ns. None where no guest runs.
pub fn measure(clock: &dyn Fn() -> u64) -> Option<ExitCost> {
    const EXITS: u64 = 2_000;
    const LOOPS: u32 = 100_000;
    let kvm = open().ok()?;
    // again: out 0x80, al; jmp again
    let mut exits = Guest::new(&kvm, false, &[0xe6, 0x80, 0xeb, 0xfc]).ok()?;
    let exit_ns = timed(clock, EXITS, &mut exits)?;
    // again: nop; jmp again
    let mut steps = Guest::new(&kvm, false, &[0x90, 0xeb, 0xfd]).ok()?;
    steps.vcpu.set_single_step(true).ok()?;
    let step_ns = timed(clock, EXITS, &mut steps)?;
    // mov ecx, LOOPS; again: dec ecx; jnz again; hlt
    let mut code = vec![0xb9];
    code.extend(LOOPS.to_le_bytes());
    code.extend([0xff, 0xc9, 0x75, 0xfc, 0xf4]);
    let mut busy = Guest::new(&kvm, false, &code).ok()?;
    let ns = timed(clock, 1, &mut busy)?;
    let ring0_instructions_per_second = (2 * u64::from(LOOPS)).saturating_mul(1_000_000_000) / ns.max(1);
    Some(ExitCost { exit_ns, step_ns, ring0_instructions_per_second })
}

/// ns an exit.
fn timed(clock: &dyn Fn() -> u64, exits: u64, guest: &mut Guest) -> Option<u64> {
    let start = clock();
    for _ in 0..exits {
        guest.run().ok()?;
    }
    Some(clock().saturating_sub(start) / exits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_the_host_writes_to_page_tables_is_seen_at_the_latest_once_kvm_was_made_to_forget() {
        if let Err(why) = std::fs::File::options().read(true).write(true).open("/dev/kvm") {
            eprintln!("skipped: /dev/kvm does not open: {why}");
            return;
        }
        let kvm = open().expect("what opens can be used");
        let mut guest = Guest::new(&kvm, true, &reader()).unwrap();
        let mut written = BTreeSet::new();
        for value in [1, 2, 1] {
            guest.map(value).unwrap();
            guest.vcpu.forget_derived(&mut written).unwrap();
            assert_eq!(guest.run().unwrap(), read(value));
        }
    }

    #[test]
    fn a_host_without_kvm_has_no_mode_and_says_why() {
        let report = HostReport::absent("there is none".to_owned());
        for (mode, said) in KvmMode::ALL.into_iter().zip(&report.modes) {
            assert_eq!(report.check(mode), Err(KvmError::HostLacks(format!("{}: there is none", mode.name()))));
            assert!(!said.works && said.leaks.is_empty());
        }
    }
}
