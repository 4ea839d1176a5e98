# SPDX-License-Identifier: AGPL-3.0-or-later
# A stand-in for nixpkgs on a machine that can reach no binary cache: the few attributes that this project uses, made of the host's
# own tools. `checks/flake` puts host.json beside it and overrides the input `nixpkgs` with it.
{
  description = "Stand-in for nixpkgs made of host tools";
  outputs =
    { self }:
    let
      lib = import ./lib.nix;
      # { system, rustSysroot, cargoCache, kernelSource, versions }: host.json is written by checks/flake.
      host = builtins.fromJSON (builtins.readFile ./host.json);
    in
    {
      inherit lib;
      legacyPackages.${host.system} = import ./pkgs.nix { inherit lib host; };
    };
}
