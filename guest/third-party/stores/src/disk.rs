// SPDX-License-Identifier: Apache-2.0
//! The file system that a store lives in.

use std::ffi::CString;
use std::io;
use std::path::PathBuf;

const FOLDER: &str = "/data";

/// Mounts the ext4 file system on a device (an image given to the boot with `--disk`), or takes a folder as it is.
pub(crate) fn mount(device: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(device);
    if path.is_dir() {
        return Ok(path);
    }
    std::fs::create_dir_all(FOLDER).map_err(|error| format!("making {FOLDER}: {error}"))?;
    let text = |text: &str| CString::new(text).map_err(|error| format!("{text:?}: {error}"));
    let (source, target, kind) = (text(device)?, text(FOLDER)?, text("ext4")?);
    // SAFETY: the pointers are to zero-terminated strings that live over the call; no options are passed.
    let done =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), libc::MS_NOATIME, std::ptr::null()) };
    let error = io::Error::last_os_error();
    // Who is started again in a machine that went on finds it mounted.
    if done != 0 && error.raw_os_error() != Some(libc::EBUSY) {
        return Err(format!("mounting {device} (an ext4 image, see guest/build --print-disk): {error}"));
    }
    let store = PathBuf::from(FOLDER).join("store");
    std::fs::create_dir_all(&store).map_err(|error| format!("making {}: {error}", store.display()))?;
    Ok(store)
}
