// SPDX-License-Identifier: AGPL-3.0-or-later
//! The pure core: cluster time, barriers, the network switch, fault decisions and round traces.
