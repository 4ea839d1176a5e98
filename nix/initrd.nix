# SPDX-License-Identifier: AGPL-3.0-or-later
# Initrds: chaos-initrd packs static programs and files; the same files give the same bytes.
{
  pkgs,
  init,
  packer,
}:
let
  inherit (pkgs) lib;
  check = import ./arguments.nix { inherit lib; };

  accepted = {
    name = check.name // {
      default = "initrd";
      help = "name of the derivation";
    };
    init = check.path // {
      default = null;
      help = "the program that becomes /init; chaos-init unless it is given";
    };
    workload = check.path // {
      default = null;
      help = "the program that chaos-init runs: a static x86-64 executable, or a derivation with one in bin/";
    };
    programs = check.setOf check.path // {
      default = { };
      help = "programs by the absolute path that they get; which one chaos-init runs is said with chaos.init=/path";
    };
    files = check.setOf check.path // {
      default = { };
      help = "more files, by the absolute path that they get: { \"/etc/app.toml\" = ./app.toml; }";
    };
  };
  rules = [
    (
      args:
      lib.optional (
        args.init == null && args.workload == null && args.programs == { }
      ) "neither init nor workload nor programs is given: name the program that the guest runs"
    )
    (
      args:
      map (path: "${path}: a path in the guest begins with /") (
        lib.filter (path: !(lib.hasPrefix "/" path)) (lib.attrNames (args.files // args.programs))
      )
    )
  ];

  mkChaosInitrd =
    given:
    let
      args = check.applyWith "mkChaosInitrd" accepted rules given;
      script = ''
        ${import ./program.nix "mkChaosInitrd"}
        init=$(program ${if args.init == null then "${init}/bin/chaos-init" else "${args.init}"})
        add=()
        ${lib.optionalString (args.workload != null) ''
          workload=$(program ${args.workload})
          add+=(--workload "$workload")
        ''}
        ${lib.concatStrings (
          lib.mapAttrsToList (destination: source: ''
            from=$(program ${source})
            add+=(--add "$from":${lib.escapeShellArg "${destination}:0755"})
          '') args.programs
        )}
        ${lib.concatStrings (
          lib.mapAttrsToList (destination: source: ''
            add+=(--add ${lib.escapeShellArg "${source}:${destination}"})
          '') args.files
        )}
        chaos-initrd --quiet --init "$init" "''${add[@]}" -o $out
      '';
    in
    pkgs.runCommand args.name {
      nativeBuildInputs = [ packer ];
      passthru = { inherit script; };
      meta.license = lib.licenses.asl20;
    } script;
in
{
  inherit accepted mkChaosInitrd rules;
}
