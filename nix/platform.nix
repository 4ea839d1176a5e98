# SPDX-License-Identifier: AGPL-3.0-or-later
# Everything that the real nixpkgs and the stand-in made of host tools (nix/host-nixpkgs) do differently, and why. No other file
# asks which of the two it is given.
{ pkgs }:
let
  inherit (pkgs) lib;
  standIn = pkgs.isHostStandIn or false;
in
{
  inherit standIn;

  # Static guests link glibc. nixpkgs keeps its archives in an output of their own; on Debian they are in libc6-dev, which is
  # where the host's linker looks.
  staticLibraries = lib.optional (!standIn) pkgs.glibc.static;

  # The kernel's scripts name /usr/bin/env and /usr/bin/perl, which a sandbox of nixpkgs does not have and the stand-in's does: the
  # one needs them rewritten in an unpacked tree, the other builds from the tarball.
  prepareKernelSource = lib.optionalString (!standIn) ''
    mkdir linux
    if [ -d "$source" ]; then cp -r --no-preserve=ownership "$source"/. linux; else tar xf "$source" -C linux --strip-components=1; fi
    chmod -R u+w linux
    patchShebangs linux/scripts linux/tools linux/arch
    source=$PWD/linux
  '';

  # The kernel's host programs link libelf; nixpkgs has it in elfutils, the stand-in in /usr.
  kernelLibraries = lib.optional (!standIn) pkgs.elfutils;

  # Formats Nix files. There is no such program among Debian's packages, so that the stand-in's formatter formats Rust only.
  nixFormatters = lib.optional (!standIn) pkgs.nixfmt;

  # What is good to have while working; on a machine with the stand-in it is installed, or not, by apt and rustup.
  shellTools = lib.optionals (!standIn) [
    pkgs.rust-analyzer
    pkgs.qemu_kvm
    pkgs.cargo-nextest
  ];
}
