# SPDX-License-Identifier: Apache-2.0
{
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
  inputs.chaoscontrol.url = "github:chaoscontrol/chaoscontrol";
  inputs.chaoscontrol.inputs.nixpkgs.follows = "nixpkgs";

  outputs =
    { self, chaoscontrol, ... }:
    let
      cc = chaoscontrol.lib.x86_64-linux;
      node = cc.mkChaosGuest {
        name = "my-node";
        src = ./.;
      };
      test = {
        initrd = cc.mkChaosInitrd { workload = node; };
        vms = 3;
        seed = 42;
        branches = 24;
        horizon = "3s";
      };
    in
    {
      packages.x86_64-linux.default = node;
      checks.x86_64-linux = {
        # Passes when no schedule of faults breaks what the program says must hold.
        my-node = cc.mkChaosTest (test // { name = "my-node"; });
        # The same program with its bug: passes when that is found, and replayed from its snapshot.
        my-node-bug = cc.mkChaosTest (
          test
          // {
            name = "my-node-bug";
            append = "log_bug=restart";
            expect = "bug";
          }
        );
      };
    };
}
