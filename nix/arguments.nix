# SPDX-License-Identifier: AGPL-3.0-or-later
# Arguments of the functions that others call, as a table: for each its default, what it may be, and a sentence. From the table come
# the check, with errors that say what to write, and the reference in docs/nix.md is held against it.
{ lib }:
let
  inherit (builtins)
    attrNames
    concatLists
    elem
    filter
    isAttrs
    isBool
    isInt
    isList
    isPath
    isString
    match
    toJSON
    typeOf
    ;
  describe =
    x:
    if lib.isDerivation x then
      "the derivation ${x.name}"
    else if isAttrs x then
      "a set with ${lib.concatStringsSep ", " (attrNames x)}"
    else if isList x then
      "a list of ${toString (lib.length x)}"
    else if isPath x then
      "the path ${toString x}"
    else if lib.isFunction x then
      "a function"
    else
      toJSON x;
  isPlace = x: isPath x || lib.isDerivation x || (isString x && lib.hasPrefix "/" x) || (isAttrs x && x ? outPath);

  # How many edits make one name of the other, for suggestions; names are short.
  distance =
    a: b:
    let
      n = lib.stringLength a;
      m = lib.stringLength b;
      char = s: i: lib.substring i 1 s;
      min = x: y: if x < y then x else y;
      row =
        previous: i:
        lib.foldl' (
          done: j:
          done
          ++ [
            (min (min (lib.elemAt previous j + 1) (lib.last done + 1)) (
              lib.elemAt previous (j - 1) + (if char a (i - 1) == char b (j - 1) then 0 else 1)
            ))
          ]
        ) [ i ] (lib.range 1 m);
    in
    lib.elemAt (lib.foldl' row (lib.range 0 m) (lib.range 1 n)) m;
  suggestion =
    names: wrong:
    let
      near = filter (name: distance name wrong <= 2) names;
    in
    if near == [ ] then "" else "; did you mean ${lib.head near}?";
in
rec {
  # Kinds of arguments: `ok` and what to say where it does not hold.
  text = {
    ok = isString;
    must = "must be text";
  };
  name = {
    ok = x: isString x && match "[A-Za-z0-9][A-Za-z0-9._+-]*" x != null;
    must = "must be a name: letters, digits, and the signs . _ + -";
  };
  lines = {
    ok = isString;
    must = "must be text of one or more lines";
  };
  switch = {
    ok = isBool;
    must = "must be true or false";
  };
  path = {
    ok = isPlace;
    must = "must be a path or a derivation";
  };
  number = low: high: {
    ok = x: isInt x && x >= low && x <= high;
    must = "must be a whole number between ${toString low} and ${toString high}";
  };
  oneOf = names: {
    ok = x: isString x && elem x names;
    must = "must be one of ${lib.concatStringsSep ", " names}";
    choices = names;
  };
  listOf = kind: {
    ok = x: isList x && lib.all kind.ok x;
    must = "must be a list, each entry of which ${kind.must}";
  };
  setOf = kind: {
    ok = x: isAttrs x && !(lib.isDerivation x) && lib.all (n: kind.ok x.${n}) (attrNames x);
    must = "must be a set, each value of which ${kind.must}";
  };

  # What is wrong with `given`, as a list of lines; none when all is well. `rules` are checks over several arguments: functions
  # from the arguments, defaults filled in, to lists of lines.
  problems =
    function: accepted: rules: given:
    let
      names = attrNames accepted;
      unknown = map (n: "there is no argument ${n}${suggestion names n}; there are: ${lib.concatStringsSep ", " names}") (
        filter (n: !(elem n names)) (attrNames given)
      );
      missing = map (n: "${n} is missing: ${accepted.${n}.help}") (
        filter (n: !(accepted.${n} ? default) && !(given ? ${n})) names
      );
      wrong = concatLists (
        map (
          n:
          let
            kind = accepted.${n};
            x = given.${n};
            isDefault = kind ? default && kind.default == null && x == null;
            choice = if kind ? choices && isString x then suggestion kind.choices x else "";
          in
          lib.optional (!isDefault && !(kind.ok x)) "${n} is ${describe x}: it ${kind.must}${choice}"
        ) (filter (n: given ? ${n}) names)
      );
      single = unknown ++ missing ++ wrong;
    in
    if !(isAttrs given) then
      [ "it was given ${describe given}: it takes a set, for instance ${function} { name = \"my-test\"; }" ]
    else if single != [ ] then
      single
    else
      concatLists (map (rule: rule (fill accepted given)) rules);

  fill = accepted: given: lib.mapAttrs (n: kind: given.${n} or kind.default) accepted;

  applyWith =
    function: accepted: rules: given:
    let
      found = problems function accepted rules given;
      title = if isAttrs given && isString (given.name or null) then "${function} (${given.name})" else function;
    in
    if found == [ ] then fill accepted given else throw (lib.concatStringsSep "\n  " ([ "${title}:" ] ++ found));
  apply = function: accepted: applyWith function accepted [ ];
}
