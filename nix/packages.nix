# SPDX-License-Identifier: AGPL-3.0-or-later
# Every package: the tools one by one and together, guest programs, initrds, kernels.
{
  pkgs,
  rust,
  workspace,
  kernel,
  platform,
}:
let
  inherit (pkgs) lib;
  named = f: folders: lib.listToAttrs (map (folder: lib.nameValuePair workspace.crates.${folder}.name (f folder)) folders);
  tools = named rust.tool rust.toolFolders;

  # A tool as a stage needs it: real files in one folder, since a stage looks for chaos-contract beside itself.
  beside =
    name: parts:
    pkgs.runCommand name {
      meta = {
        mainProgram = name;
        license = lib.licenses.agpl3Plus;
      };
    } ''
      mkdir -p $out
      for part in ${toString parts}; do cp -rL --no-preserve=ownership "$part"/. $out/; chmod -R u+w $out; done
    '';
  contract = lib.optional (workspace.has "tools/contract") rust.contract;
  withContract = name: beside name ([ tools.${name} ] ++ contract);
  stages = lib.mapAttrs (name: _: withContract name) tools;
  all = beside "chaos-tools" (lib.attrValues tools ++ contract);

  guestOf = import ./guest.nix {
    inherit
      pkgs
      platform
      rust
      workspace
      ;
  };
  init = guestOf.guest "guest/init";
  raft = guestOf.guest "guest/raft";
  workloads = guestOf.guest "guest/workloads";
  rustWorkload = guestOf.guest "guest/rust-workload";
  # One program of a crate with several.
  one =
    package: program: name:
    pkgs.runCommand name { meta.mainProgram = program; } ''
      mkdir -p $out/bin
      cp ${package}/bin/${program} $out/bin/
    '';
  guests = {
    guest-init = init;
    guest-raft = raft;
    guest-net = guestOf.guest "guest/net";
    guest-rust-workload = rustWorkload;
    guest-sdk = one workloads "chaos-sdk-demo" "guest-sdk";
    guest-fault-probe = one workloads "chaos-fault-probe" "guest-fault-probe";
    guest-misbehave = one workloads "chaos-misbehave" "guest-misbehave";
    guest-loops = one workloads "chaos-loops" "guest-loops";
  };
  initrd = import ./initrd.nix {
    inherit pkgs init;
    packer = tools.chaos-initrd;
  };
  initrds = lib.listToAttrs (
    map (
      guest:
      let
        name = "initrd-${lib.removePrefix "guest-" guest}";
      in
      lib.nameValuePair name (
        initrd.mkChaosInitrd {
          inherit name;
          workload = guests.${guest};
        }
      )
    ) (lib.filter (guest: guest != "guest-init") (lib.attrNames guests))
  );
in
{
  inherit
    guests
    initrd
    initrds
    stages
    tools
    ;
  inherit (guestOf) mkChaosGuest;
  packages =
    stages
    // guests
    // initrds
    // kernel.packages
    // lib.optionalAttrs (contract != [ ]) { chaos-contract = lib.head contract; }
    // {
      default = all;
      chaos-tools = all;
    };
}
