# Run by CPack between its installation and the package: what only a Debian package has.
set(share "${CPACK_TEMPORARY_DIRECTORY}/usr/share")
file(RENAME ${share}/zsh/site-functions ${share}/zsh/vendor-completions)
file(REMOVE ${share}/doc/baton/LICENSE)
configure_file(${CMAKE_CURRENT_LIST_DIR}/copyright ${share}/doc/baton/copyright COPYONLY)
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${share}/doc/baton/changelog "baton (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium\n
  * See CHANGELOG.md.gz in this directory.\n
 -- ${CPACK_PACKAGE_CONTACT}  ${now}\n")
execute_process(COMMAND gzip -9n ${share}/doc/baton/changelog ${share}/doc/baton/CHANGELOG.md COMMAND_ERROR_IS_FATAL ANY)
