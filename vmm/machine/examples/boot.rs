// SPDX-License-Identifier: AGPL-3.0-or-later
//! Boots a kernel and an initrd, prints the serial console and how far the guest came.
//!
//!     cargo run --release -p chaoscontrol-machine --example boot -- vmlinux [initrd.cpio] [seconds] [append...]

use std::io::Write;
use std::sync::Arc;

use chaoscontrol_machine::{Firmware, GuestNs, Machine, Stop, VmConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kernel = arguments.next().ok_or("usage: boot KERNEL [INITRD|-] [SECONDS] [APPEND...]")?;
    let initrd = arguments.next().filter(|path| path != "-");
    let seconds: u64 = arguments.next().map_or(Ok(10), |text| text.parse())?;
    let append: Vec<String> = arguments.collect();

    let mut config = VmConfig::new(64 << 20, std::fs::read(kernel)?.into());
    config.initrd = initrd.map(std::fs::read).transpose()?.map(Into::into);
    if append.iter().any(|word| word == "legacy") {
        config.firmware = Firmware::Legacy;
    }
    config.append = append.into_iter().filter(|word| word != "legacy").collect::<Vec<_>>().join(" ");
    let mut machine = Machine::new(Arc::new(config))?;
    machine.load()?;

    let deadline = GuestNs(seconds * 1_000_000_000);
    let mut step = machine.now();
    let stop = loop {
        step = step.after(1_000_000).min(deadline);
        let stop = machine.run_until(step)?;
        std::io::stdout().write_all(&machine.take_serial())?;
        std::io::stdout().flush()?;
        match stop {
            Stop::Deadline if step >= deadline => break stop,
            Stop::Idle { .. } if step >= deadline => break stop,
            Stop::Idle { .. } => machine.skip_to(step),
            Stop::Deadline | Stop::Doorbell { .. } | Stop::RestartPoint => {}
            _ => break stop,
        }
    };
    eprintln!(
        "\nstopped: {stop:?} at rip {:#x}\n{} instructions, guest time {}",
        machine.cpu().rip,
        machine.instructions(),
        machine.now()
    );
    Ok(())
}
