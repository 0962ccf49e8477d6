# Run by cmake --install: writes the unit, the user and the configuration. BINDIR and SYSCONFDIR are
# relative to the prefix. A configuration that is there is left as it is.
set(bindir ${CMAKE_INSTALL_PREFIX}/${BINDIR})
set(sysconfdir ${CMAKE_INSTALL_PREFIX}/${SYSCONFDIR})
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(sysconfdir /etc)
endif()
set(units ${CMAKE_INSTALL_PREFIX}/lib/systemd/system)
set(users ${CMAKE_INSTALL_PREFIX}/lib/sysusers.d)

configure_file(${CMAKE_CURRENT_LIST_DIR}/baton.service "$ENV{DESTDIR}${units}/baton.service" @ONLY)
configure_file(${CMAKE_CURRENT_LIST_DIR}/sysusers.conf "$ENV{DESTDIR}${users}/baton.conf" COPYONLY)
if(NOT EXISTS "$ENV{DESTDIR}${sysconfdir}/baton/baton.json")
  configure_file(${CMAKE_CURRENT_LIST_DIR}/baton.json "$ENV{DESTDIR}${sysconfdir}/baton/baton.json" COPYONLY)
endif()
list(APPEND CMAKE_INSTALL_MANIFEST_FILES
  "${units}/baton.service" "${users}/baton.conf" "${sysconfdir}/baton/baton.json")
message(STATUS "Installed: ${units}/baton.service, ${users}/baton.conf, ${sysconfdir}/baton/baton.json")
