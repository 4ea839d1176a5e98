// SPDX-License-Identifier: Apache-2.0
//! The guest SDK: assertions, agreement, events and guided randomness.
