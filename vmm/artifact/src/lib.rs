// SPDX-License-Identifier: AGPL-3.0-or-later
//! The content-addressed store, canonical encodings and document schemas.
