def current_script():
    return None
