/* lab stand-in */
