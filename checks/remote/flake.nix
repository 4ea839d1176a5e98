# SPDX-License-Identifier: AGPL-3.0-or-later
# A campaign that is worth spreading: checks/nix-remote runs it on builders that are reached over ssh.
{
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
  inputs.chaoscontrol.url = "path:../..";
  inputs.chaoscontrol.inputs.nixpkgs.follows = "nixpkgs";
  outputs =
    { chaoscontrol, ... }:
    let
      cc = chaoscontrol.lib.x86_64-linux;
    in
    {
      checks.x86_64-linux.spread = cc.mkChaosTest {
        name = "spread";
        initrd = chaoscontrol.packages.x86_64-linux.initrd-raft;
        append = "raft_bug=double_vote";
        diskMib = [ 16 ];
        seed = 42;
        branches = 8;
        shards = 4;
        expect = "bug";
      };
    };
}
