// SPDX-License-Identifier: Apache-2.0
//! The files of a new project, as `chaos-scaffold` writes them. Where they say so, a name or a path is put in:
//!
//! | in the text | what |
//! |---|---|
//! | `@NAME@` | the name of the package |
//! | `@CHAOSCONTROL@` | the folder of the checkout that has the SDK |

/// The program: this crate's own.
pub const MAIN: &str = include_str!("main.rs");
/// Its manifest.
pub const MANIFEST: &str = include_str!("template/Cargo.toml.in");
/// Its lock file: the versions that this repository has, so that nothing has to be fetched.
pub const LOCK: &str = include_str!("template/Cargo.lock.in");
/// What it is and what to do with it.
pub const README: &str = include_str!("template/README.md.in");
/// From the source to a bug that was found, shrunk and replayed.
pub const FIND_BUG: &str = include_str!("template/find-bug.in");
/// What git leaves alone.
pub const IGNORED: &str = "/target\n/.campaign\n";
