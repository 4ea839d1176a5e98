# SPDX-License-Identifier: AGPL-3.0-or-later
{
  description = "Deterministic simulation testing of distributed systems: real Linux guests, faults, and bugs that replay bit for bit";
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
  outputs = { self, nixpkgs }: import ./nix { inherit self nixpkgs; };
}
