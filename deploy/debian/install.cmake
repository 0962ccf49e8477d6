# Run by CPack between its installation and the package: what only a Debian package has.
set(share "${CPACK_TEMPORARY_DIRECTORY}/usr/share")
file(RENAME ${share}/zsh/site-functions ${share}/zsh/vendor-completions)
file(REMOVE ${share}/doc/baton/LICENSE)
set(doc ${share}/doc/${CPACK_DEBIAN_PACKAGE_NAME})
configure_file(${CMAKE_CURRENT_LIST_DIR}/copyright ${doc}/copyright COPYONLY)
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${doc}/changelog "${CPACK_DEBIAN_PACKAGE_NAME} (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium\n
  * See /usr/share/doc/baton/CHANGELOG.md.gz.\n
 -- ${CPACK_PACKAGE_CONTACT}  ${now}\n")
execute_process(COMMAND gzip -9n ${doc}/changelog ${share}/doc/baton/CHANGELOG.md COMMAND_ERROR_IS_FATAL ANY)
