// SPDX-License-Identifier: Apache-2.0
//! The kernel's file systems.

use crate::system::Failure;
use std::ffi::CString;
use std::path::Path;

const MOUNTS: [(&str, &str, &str); 5] = [
    ("devtmpfs", "/dev", "mode=0755"),
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("tmpfs", "/tmp", "mode=1777"),
    ("tmpfs", "/dev/shm", "mode=1777"),
];

const DEBUG: &str = "/sys/kernel/debug";

/// Mounts what programs expect to find.
pub fn mount_all() -> Result<(), Failure> {
    MOUNTS.into_iter().try_for_each(|(kind, directory, options)| mount(kind, directory, options))?;
    // The kernel makes this directory where it has the file system: one that counts its own coverage (KCOV) does.
    if Path::new(DEBUG).exists() { mount("debugfs", DEBUG, "mode=0755") } else { Ok(()) }
}

fn mount(kind: &str, directory: &str, options: &str) -> Result<(), Failure> {
    let what = format!("cannot mount {kind} on {directory}");
    std::fs::create_dir_all(directory).map_err(|error| Failure::new(&what, error))?;
    let text = |s: &str| CString::new(s).expect("the table has no zero bytes");
    let (kind, target, options) = (text(kind), text(directory), text(options));
    // SAFETY: all pointers are to zero-terminated strings that live over the call.
    let done = unsafe {
        libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast::<libc::c_void>())
    };
    // Busy: the kernel mounted it already.
    let busy = || std::io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY);
    if done == 0 || busy() { Ok(()) } else { Err(Failure::last(what)) }
}
