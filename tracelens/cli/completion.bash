_tracelens_words() {
  case "$1" in
@cases@
  esac
}
_tracelens() {
  local at=1 path= word found cur="${COMP_WORDS[COMP_CWORD]}"
  while [ "$at" -lt "$COMP_CWORD" ]; do
    word="${COMP_WORDS[at]}"
    found="$(_tracelens_words "${path:+$path }$word")"
    case "$word" in
      -*) ;;
      *) if [ -n "$found" ]; then path="${path:+$path }$word"; else path="${path:-report}"; fi ;;
    esac
    at=$((at + 1))
  done
  found="$(_tracelens_words "${path:+$path }${COMP_WORDS[COMP_CWORD-1]}")"
  case "${COMP_WORDS[COMP_CWORD-1]}" in
    -*) [ -n "$found" ] || found="$(_tracelens_words "$path")" ;;
    *) found="$(_tracelens_words "$path")" ;;
  esac
  COMPREPLY=($(compgen -W "$found" -- "$cur"))
}
complete -o default -F _tracelens tracelens
