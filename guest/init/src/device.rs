// SPDX-License-Identifier: Apache-2.0
//! Makes `/dev/chaos` of the ACPI device `CHAO0001`, so that programs without root can map the SDK region.
//!
//! The kernel's generic UIO driver takes any platform device once `driver_override` names it. A kernel without UIO or ACPI
//! leaves root programs `/dev/mem`.

use std::ffi::CString;
use std::fs;
use std::path::Path;

const DEVICE: &str = "CHAO0001:00";
const DRIVER: &str = "uio_pdrv_genirq";
const NODE: &str = "/dev/chaos";

/// Binds the driver and makes the device node. Where there is no device nothing happens; what fails is said.
pub fn make_chaos_device() {
    let device = Path::new("/sys/bus/platform/devices").join(DEVICE);
    let driver = Path::new("/sys/bus/platform/drivers").join(DRIVER);
    if !device.exists() || !driver.exists() {
        return;
    }
    let bound = fs::write(device.join("driver_override"), DRIVER).and_then(|()| fs::write(driver.join("bind"), DEVICE));
    match bound.map_err(|error| error.to_string()).and_then(|()| number_of(&device)) {
        Ok(number) => make_node(number),
        Err(why) => println!("chaos-init: no {NODE}: {why}"),
    }
}

/// The device number of the UIO device below `device`.
fn number_of(device: &Path) -> Result<libc::dev_t, String> {
    let mut entries =
        fs::read_dir(device.join("uio")).map_err(|error| format!("the driver made no uio device: {error}"))?;
    let entry = entries.next().and_then(Result::ok).ok_or("the driver made no uio device")?;
    let text = fs::read_to_string(entry.path().join("dev")).map_err(|error| error.to_string())?;
    let (major, minor) = text.trim().split_once(':').ok_or("the device number is unreadable")?;
    let number = |text: &str| text.parse::<libc::c_uint>().map_err(|error| error.to_string());
    Ok(libc::makedev(number(major)?, number(minor)?))
}

fn make_node(number: libc::dev_t) {
    let path = CString::new(NODE).expect("the path has no zero bytes");
    // SAFETY: the path is a zero-terminated string. `chmod` makes the mode independent of the umask.
    let made = unsafe {
        libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, number) == 0 && libc::chmod(path.as_ptr(), 0o666) == 0
    };
    if !made {
        println!("chaos-init: cannot make {NODE}: {}", std::io::Error::last_os_error());
    }
}
