# SPDX-License-Identifier: AGPL-3.0-or-later
# The flake's outputs, put together from one file a concern.
{ self, nixpkgs }:
let
  inherit (nixpkgs) lib;
  # Guests are x86-64, and the exact engine is tested on x86-64 hosts.
  systems = [ "x86_64-linux" ];
  root = ./..;
  partsFor =
    pkgs:
    let
      platform = import ./platform.nix { inherit pkgs; };
      workspace = import ./workspace.nix {
        inherit (pkgs) lib;
        inherit root;
      };
      rust = import ./rust.nix {
        inherit
          pkgs
          platform
          workspace
          ;
      };
      kernel = import ./kernel.nix { inherit pkgs platform root; };
      packages = import ./packages.nix {
        inherit
          pkgs
          rust
          workspace
          kernel
          platform
          ;
      };
      chaosTest = import ./chaos-test.nix {
        inherit pkgs;
        tools = packages.stages;
        initrds = packages.initrd;
        defaultKernel = kernel.packages.net-vmlinux;
      };
      # What other flakes call.
      functions = {
        inherit (kernel) mkChaosKernel;
        inherit (packages.initrd) mkChaosInitrd;
        inherit (packages) mkChaosGuest;
        inherit (chaosTest) mkChaosTest;
      };
    in
    {
      inherit
        chaosTest
        kernel
        functions
        packages
        pkgs
        platform
        root
        rust
        workspace
        ;
    };
  parts = lib.genAttrs systems (system: partsFor nixpkgs.legacyPackages.${system});
  forAll = f: lib.mapAttrs (_: f) parts;
in
{
  packages = forAll (p: p.packages.packages);
  apps = forAll (import ./apps.nix);
  checks = forAll (p: import ./checks.nix (p // { inherit self nixpkgs; }));
  devShells = forAll (p: { default = import ./shell.nix p; });
  formatter = forAll (p: (import ./shell.nix p).formatter);

  # lib.mkChaosTest, and the same for each system and for a nixpkgs of one's own: lib.forPkgs pkgs.
  lib =
    parts.x86_64-linux.functions
    // forAll (p: p.functions)
    // {
      forPkgs = pkgs: (partsFor pkgs).functions;
    };
  overlays.default = final: prev: {
    chaoscontrol =
      let
        p = partsFor final;
      in
      p.packages.packages // p.functions;
  };
  templates.default = {
    path = ../guest/template;
    description = "A first workload, and its test under faults";
    welcomeText = ''
      A cluster of three nodes and its test. Next:

          git init && git add -A     # a flake sees tracked files only
          nix flake check -L         # builds a kernel the first time
    '';
  };
}
