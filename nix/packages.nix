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

  contract = lib.optional (workspace.has "tools/contract") rust.contract;
  # Tools as stages need them: real files in one folder, and there a link to chaos-contract, which a stage looks for beside itself. Of
  # that there is one copy: it is as large as all other tools together.
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
      for part in ${toString contract}; do cp -rs "$part"/. $out/; done
    '';
  stages = lib.mapAttrs (name: tool: beside name [ tool ]) tools;
  all = beside "chaos-tools" (lib.attrValues tools);

  guestOf = import ./guest.nix {
    inherit
      pkgs
      platform
      rust
      workspace
      ;
  };
  # Every program of every crate in guest/, as guest-NAME.
  guests = lib.listToAttrs (
    lib.concatMap (
      folder:
      let
        inherit (workspace.crates.${folder}) bins;
        package = guestOf.guest folder;
        named =
          bin:
          let
            name = "guest-${lib.removePrefix "chaos-" (lib.removeSuffix "-demo" bin)}";
          in
          lib.nameValuePair name (if lib.length bins == 1 then package else one package bin name);
      in
      map named bins
    ) (lib.filter (folder: workspace.crates.${folder}.bins != [ ]) (workspace.inDirectory "guest"))
  );
  # One program of a crate with several.
  one =
    package: program: name:
    pkgs.runCommand name { meta.mainProgram = program; } ''
      mkdir -p $out/bin
      cp ${package}/bin/${program} $out/bin/
    '';
  initrd = import ./initrd.nix {
    inherit pkgs;
    init = guests.guest-init;
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
