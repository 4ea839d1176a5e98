# SPDX-License-Identifier: AGPL-3.0-or-later
# One derivation a stage. Its output is a store: the objects that the stage added, `descriptor.json`, and `from/` links to the stores
# that it builds on, so that Nix sees the references: what keeps a bug keeps all that replaying it takes.
{ pkgs, tools }:
let
  inherit (pkgs) lib;

  # Runs one stage into $out. What the host was and when it ran is no part of an output: it would differ from build to build.
  prelude = ''
    stage_failed() { # name, exit code
      case $2 in
        2) why="wrong usage" ;;
        3) why="an input is unreadable, damaged or breaks its contract" ;;
        4) why="this builder lacks something that was asked for" ;;
        5) why="a guest did not get as far as the stage needs: its console is above" ;;
        10) why="a required outcome does not hold" ;;
        11) why="a budget ran out" ;;
        12) why="two runs that must be the same differ" ;;
        *) why="an internal error" ;;
      esac
      echo "stage $1 failed with code $2: $why" >&2
    }
    run_stage() { # name, tool, arguments...
      local name=$1 code=0
      shift
      "$@" --quiet --store "$out" >"$NIX_BUILD_TOP/descriptor.json" || code=$?
      if [ $code != 0 ]; then stage_failed "$name" $code; return $code; fi
      mv "$NIX_BUILD_TOP/descriptor.json" "$out/descriptor.json"
      rm -rf "$out"/environment/* "$out"/tmp/* "$out/lock"
    }
  '';

  stage =
    {
      # Of the derivation, and what messages call the stage.
      name,
      title,
      # The binary.
      tool,
      # Arguments, as a line of shell.
      arguments ? "",
      # Outputs of stages, by the name of the link.
      from ? { },
      # Shell that runs first.
      before ? "",
      # Whether guests run on the host's CPU.
      kvm ? false,
      # More attributes of the derivation.
      environment ? { },
    }:
    let
      script = ''
        ${prelude}
        mkdir -p $out/from
        ${lib.concatStrings (
          lib.mapAttrsToList (link: store: ''
            if [ ! -e ${store}/descriptor.json ]; then
              echo "stage ${title}: ${store} is no output of a stage: it holds no descriptor.json" >&2
              exit 3
            fi
            ln -s ${store} $out/from/${link}
          '') from
        )}
        ${lib.optionalString kvm ''
          if [ ! -w /dev/kvm ]; then
            echo "stage ${title}: the engine needs /dev/kvm, which this builder does not give: see docs/nix.md" >&2
            exit 4
          fi
        ''}
        ${before}
        run_stage ${lib.escapeShellArg title} ${tool} ${arguments}
      '';
    in
    pkgs.runCommand name (
      environment
      // {
        nativeBuildInputs = [ tools.${tool} ];
        # For checks that run the same script and expect it to fail.
        passthru = {
          inherit script;
          program = tools.${tool};
          environment = environment;
        };
      }
      // lib.optionalAttrs kvm { requiredSystemFeatures = [ "kvm" ]; }
    ) script;

  # A stage that reads what one stage before wrote.
  after =
    previous: args:
    stage (
      args
      // {
        from = {
          inherit previous;
        };
        arguments = "--in ${previous}/descriptor.json ${args.arguments or ""}";
      }
    );
in
{
  inherit after stage;
}
