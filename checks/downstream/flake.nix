# SPDX-License-Identifier: AGPL-3.0-or-later
# A flake as users write them: ours is an input, the guest is its own. checks/flake runs its checks.
{
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
  inputs.chaoscontrol.url = "path:../..";
  inputs.chaoscontrol.inputs.nixpkgs.follows = "nixpkgs";

  outputs =
    { chaoscontrol, ... }:
    let
      cc = chaoscontrol.lib.x86_64-linux;
      guest = cc.mkChaosGuest {
        name = "turnstile";
        src = ./guest;
      };
      test =
        given:
        cc.mkChaosTest (
          {
            nodes = [
              { workload = guest; append = given.server or ""; }
              { workload = guest; append = "role=client"; }
            ];
            seed = 7;
            branches = 8;
            shards = 2;
            rounds = 2;
            horizon = "2s";
          }
          // removeAttrs given [ "server" ]
        );
    in
    {
      packages.x86_64-linux.default = guest;
      checks.x86_64-linux = {
        turnstile = test { name = "turnstile"; };
        turnstile-forgetful = test {
          name = "turnstile-forgetful";
          server = "tickets=forgetful";
          expect = "bug";
        };
      };
    };
}
